"""Tests of the log of time stamps."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.reference import Kernel


def taken(log: Any) -> list[tuple[float, int, int]]:
    return list(struct.iter_unpack("=dii", log.take()))


def test_stamps_are_taken_in_order(kernel: Kernel) -> None:
    log = kernel.StampLog()
    start = time.perf_counter()
    for row in range(1000):
        log.minibatch = row // 100
        log.stamp(row - 1)
    end = time.perf_counter()
    assert len(log) == 1000
    stamps = taken(log)
    assert [(row, minibatch) for _, row, minibatch in stamps] == [
        (n - 1, n // 100) for n in range(1000)
    ]
    times = [start, *(at for at, _, _ in stamps), end]
    assert times == sorted(times)


def test_take_removes_the_stamps(kernel: Kernel) -> None:
    log = kernel.StampLog()
    assert log.take() == b""
    log.minibatch = 3
    log.stamp_many(7, 5)
    first = log.take()
    assert (len(first), len(log), log.minibatch) == (5 * 16, 0, 0)
    log.stamp(1)
    # The bytes are not shared.
    assert {row for _, row, _ in struct.iter_unpack("=dii", first)} == {7}
    assert len(taken(log)) == 1


@pytest.mark.parametrize(("count", "left"), [(0, 0), (2, 2), (5, 5), (9, 5), (-1, 5)])
def test_keep_drops_later_stamps(kernel: Kernel, count: int, left: int) -> None:
    log = kernel.StampLog()
    for row in range(5):
        log.stamp(row)
    log.keep(count)
    assert [row for _, row, _ in taken(log)] == list(range(left))


def test_stamp_at_is_never_before_last_stamp(kernel: Kernel) -> None:
    log = kernel.StampLog()
    now = time.perf_counter()
    log.stamp_at(1, now + 5)
    log.stamp_at(2, now + 7.5)
    log.stamp_at(3, now)  # before the one that is there already
    assert [(at - now, row) for at, row, _ in taken(log)] == [
        (pytest.approx(5), 1),
        (pytest.approx(7.5), 2),
        (pytest.approx(7.5), 3),
    ]


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e10, 1e300])
def test_stamp_at_invalid_time_raises(kernel: Kernel, at: float) -> None:
    log = kernel.StampLog()
    with pytest.raises(ValueError, match="is no time"):
        log.stamp_at(0, at)
    assert len(log) == 0


def filled(kernel: Kernel, *stamps: tuple[int, int, int]) -> Any:
    """Create a log of stamps: the nanoseconds since the previous one, the row and the minibatch."""
    log, at = kernel.StampLog(), 0
    for took, row, minibatch in stamps:
        at += took
        log.minibatch = minibatch
        log.stamp_at(row, at / 1e9)
    return log


def doubles(*values: float) -> bytes:
    return struct.pack(f"={len(values)}d", *values)


ROWS = 4
STAMPS = st.lists(
    st.tuples(
        st.integers(0, 10**12),
        st.integers(-1, ROWS - 1),
        st.sampled_from([0, 0, 0, 1, 2, 7]),
    ),
    min_size=1,
    max_size=60,
)
FLAGS = st.binary(min_size=ROWS, max_size=ROWS).map(lambda flags: bytes(each % 2 for each in flags))


@given(
    stamps=STAMPS,
    costs=st.lists(st.floats(0, 1e-6), min_size=ROWS, max_size=ROWS),
    once=FLAGS,
    outside=FLAGS,
)
@example(stamps=[(1, -1, 0)], costs=[0.0] * ROWS, once=bytes(ROWS), outside=bytes(ROWS))
@example(stamps=[(1, -1, 0)] * 3, costs=[0.0] * ROWS, once=bytes(ROWS), outside=bytes(ROWS))
@example(stamps=[(1, 3, 1)] * 9, costs=[1e-9] * ROWS, once=b"\1" * ROWS, outside=b"\1" * ROWS)
def test_sums_equal_reference_bitwise(
    kernels: tuple[Kernel, Kernel],
    stamps: list[tuple[int, int, int]],
    costs: list[float],
    once: bytes,
    outside: bytes,
) -> None:
    compiled, reference = (
        filled(kernel, *stamps).sum_up(doubles(*costs), once, outside) for kernel in kernels
    )
    assert compiled == reference


@pytest.mark.parametrize(
    ("stamp", "costs", "once", "outside"),
    [
        ((1, 2, 0), 2, 2, 2),
        ((1, -2, 0), 2, 2, 2),
        ((1, 0, 0), 0, 0, 0),
        ((1, 0, -1), 2, 2, 2),
        ((1, 0, 0), 1, 2, 2),
        ((1, 0, 0), 2, 1, 2),
        ((1, 0, 0), 2, 2, 3),
    ],
)
def test_sum_up_with_invalid_arguments_raises(
    kernel: Kernel, stamp: tuple[int, int, int], costs: int, once: int, outside: int
) -> None:
    log = filled(kernel, (1, -1, 0), stamp)
    with pytest.raises(ValueError, match=r"row|minibatch"):
        log.sum_up(doubles(*[0.0] * costs), bytes(once), bytes(outside))
