"""The work to explain, make and open a network grows linearly with its ops.

Calls are counted, of Python and of C. Keys count their comparisons too, because a search in a list
is one call however long the list is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from fastnet.network.torch import TorchNetwork
from fastnet.op import numpyop
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.slicer import AxisSlicer

SIZES = 20, 40, 80


class Key(str):
    """A key whose comparisons are calls."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def numbered(name: str, count: int) -> list[str]:
    return [Key(f"{name}{number}") for number in range(count)]


def first(*values: Any) -> Any:
    return values[0]


def writers(count: int) -> list[Any]:
    return [LambdaOp(first, "x", key) for key in numbered("y", count)]


def chain(count: int) -> list[Any]:
    return [LambdaOp(first, *pair) for pair in pairwise(numbered("k", count + 1))]


Made = tuple[list[Any], dict[str, Any], list[str]]
PROGRAMS: dict[str, Callable[[int], Made]] = {
    "chain": lambda count: (chain(count), {}, []),
    "unneeded chain": lambda count: (chain(count), {}, ["x"]),
    "one key": lambda count: ([LambdaOp(first, "x", "x")] * count, {}, []),
    "deleted keys": lambda count: (
        [*writers(count), *map(Delete, numbered("y", count))],
        {},
        numbered("y", count),
    ),
    "one op of many keys": lambda count: (
        [LambdaOp(first, numbered("x", count), numbered("x", count))],
        {},
        numbered("x", count),
    ),
    "postprocessing": lambda count: (
        writers(1),
        {"postprocessing": [numpyop.LambdaOp(first, "y0", key) for key in numbered("z", count)]},
        [],
    ),
    "slicers": lambda count: (
        writers(count),
        {"slicers": AxisSlicer(axis=0, slice=["x"], unslice=numbered("y", count))},
        [],
    ),
    "fuse": lambda count: ([Fuse(chain(count))], {}, []),
}


def calls(work: Callable[[], Any]) -> int:
    count = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def check_linear(work: Callable[[int], Callable[[], Any]]) -> None:
    """Check that the calls per size are constant, but for the logarithm of a sort."""
    work(SIZES[0])()  # fill caches
    one, two, four = (calls(work(size)) for size in SIZES)
    assert four - two <= 2.3 * (two - one) + 30, (one, two, four)


@pytest.mark.parametrize("program", PROGRAMS)
def test_networks(program: str) -> None:
    def make(size: int) -> Callable[[], Any]:
        ops, others, _ = PROGRAMS[program](size)
        return lambda: TorchNetwork(ops, **others)

    def enter(size: int) -> Callable[[], Any]:
        ops, others, desired = PROGRAMS[program](size)
        network = TorchNetwork(ops, **others)
        return lambda: network("train", 1, desired_output_keys=desired)

    def explain(size: int) -> Callable[[], Any]:
        ops, others, desired = PROGRAMS[program](size)
        network = TorchNetwork(ops, **others)
        return lambda: network.explain("train", desired_output_keys=desired)

    check_linear(make)
    check_linear(enter)
    check_linear(explain)
    for form in ("__str__", "to_dict", "to_mermaid", "to_dot"):
        check_linear(lambda size, form=form: getattr(explain(size)(), form))  # type: ignore[misc]


def test_quadratic_work_is_detected() -> None:
    def search(size: int) -> Callable[[], Any]:
        keys = numbered("k", size)
        return lambda: [key for key in numbered("k", size) if key in keys]

    with pytest.raises(AssertionError):
        check_linear(search)
