"""Stamps: what is taken down, and what is handed out."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

from tests.reference import Kernel


def taken(log: Any) -> list[tuple[float, int, int]]:
    return list(struct.iter_unpack("=dii", log.take()))


def test_stamps_come_back_in_order(kernel: Kernel) -> None:
    log = kernel.StampLog()
    start = time.perf_counter()
    for row in range(1000):
        log.part = row // 100
        log.stamp(row - 1)
    end = time.perf_counter()
    assert len(log) == 1000
    stamps = taken(log)
    assert [(row, part) for _, row, part in stamps] == [(n - 1, n // 100) for n in range(1000)]
    times = [start, *(at for at, _, _ in stamps), end]
    assert times == sorted(times)


def test_what_was_taken_is_gone(kernel: Kernel) -> None:
    log = kernel.StampLog()
    assert log.take() == b""
    log.part = 3
    log.stamp_many(7, 5)
    first = log.take()
    assert (len(first), len(log), log.part) == (5 * 16, 0, 0)
    log.stamp(1)
    # what was handed out is nobody else's
    assert {row for _, row, _ in struct.iter_unpack("=dii", first)} == {7}
    assert len(taken(log)) == 1


@pytest.mark.parametrize(("count", "left"), [(0, 0), (2, 2), (5, 5), (9, 5), (-1, 5)])
def test_keeping_the_first(kernel: Kernel, count: int, left: int) -> None:
    log = kernel.StampLog()
    for row in range(5):
        log.stamp(row)
    log.keep(count)
    assert [row for _, row, _ in taken(log)] == list(range(left))


def test_a_time_that_was(kernel: Kernel) -> None:
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
