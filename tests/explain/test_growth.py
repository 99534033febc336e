"""What it takes to explain, make and open a network grows with its ops, not with their square.

Calls are counted, of Python and of C. The keys count their comparisons too, as a search in a list
is one call however long the list is; and a plan counts each op of which it is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from fastnet.explain.explanation import Explanation, explain_subject
from fastnet.network import explaining
from fastnet.network.torch import TorchNetwork
from fastnet.op import numpyop
from fastnet.op.numpyop.meta import Fuse as FuseArrays
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.slicer import AxisSlicer

SIZES = 20, 40, 80
FORMS = ("__str__", "to_dict", "to_mermaid", "to_dot")


class Key(str):
    """A key whose comparisons are calls."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __str__(self) -> str:
        return self


def numbered(name: str, count: int) -> list[str]:
    return [Key(f"{name}{number}") for number in range(count)]


def first(*values: Any) -> Any:
    return values[0]


def writers(count: int) -> list[Any]:
    return [LambdaOp(first, "x", key) for key in numbered("y", count)]


def chain(count: int) -> list[Any]:
    keys = numbered("k", count + 1)
    return [LambdaOp(first, *pair) for pair in pairwise(keys)]


Made = tuple[list[Any], dict[str, Any], list[str]]
PROGRAMS: dict[str, Callable[[int], Made]] = {
    "a chain": lambda count: (chain(count), {}, []),
    "a chain that nobody needs": lambda count: (chain(count), {}, ["x"]),
    "one key, read and written": lambda count: ([LambdaOp(first, "x", "x")] * count, {}, []),
    "one key, overwritten unread": lambda count: (
        [LambdaOp(first, "x", "y") for _ in range(count)],
        {},
        ["y"],
    ),
    "one key that all read": lambda count: (writers(count), {}, []),
    "keys that are deleted": lambda count: (
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
}


def calls(work: Callable[[], Any]) -> int:
    """Count the calls, of Python and of C, that something makes."""
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


def check_linear(work_of: Callable[[int], Callable[[], Any]]) -> None:
    """Twice as much more is twice as many calls more, give or take the logarithm of a sort."""
    work_of(SIZES[0])()  # what is imported, and cached, on the way
    one, two, four = (calls(work_of(size)) for size in SIZES)
    assert four - two <= 2.3 * (two - one) + 30, (one, two, four)


def counting(value: Any) -> Any:
    """Have all texts in an explanation count."""
    if isinstance(value, str):
        return Key(value)
    if isinstance(value, (tuple, frozenset)):
        return type(value)(map(counting, value))
    if isinstance(value, dict):
        return {counting(key): counting(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: counting(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **values)
    return value


class CountingPlan:
    """A plan that makes a call for each op that it is asked of."""

    def __init__(self, plan: Any) -> None:
        self.resolution = plan.resolution
        self._flow = plan.flow

    @property
    def flow(self) -> Any:
        return tuple(counting(each) for each in self._flow)


def make(program: str, size: int) -> tuple[TorchNetwork, list[str]]:
    ops, others, desired = PROGRAMS[program](size)
    return TorchNetwork(ops, **others), desired


@pytest.mark.parametrize("program", PROGRAMS)
def test_to_explain(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects: list[Any] = []
    monkeypatch.setattr(explaining, "explain_subject", subjects.append)

    def work_of(size: int) -> Callable[[], Any]:
        network, desired = make(program, size)
        network.explain("train", desired_output_keys=desired)
        subject = subjects.pop()
        counted = replace(subject, plan=CountingPlan(subject.plan))
        return lambda: explain_subject(counted)

    check_linear(work_of)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_to_show(program: str, form: str) -> None:
    def work_of(size: int) -> Callable[[], Any]:
        network, desired = make(program, size)
        explanation: Explanation = counting(network.explain("train", desired_output_keys=desired))
        return getattr(explanation, form)

    check_linear(work_of)


@pytest.mark.parametrize("program", PROGRAMS)
def test_to_make_and_to_open_a_network(program: str) -> None:
    def make_of(size: int) -> Callable[[], Any]:
        ops, others, _ = PROGRAMS[program](size)
        return lambda: TorchNetwork(ops, **others)

    def open_of(size: int) -> Callable[[], Any]:
        network, desired = make(program, size)

        def work() -> None:
            with network("train", 1, desired_output_keys=desired):
                pass

        return work

    check_linear(make_of)
    check_linear(open_of)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_to_fuse(apart: bool, deleted: bool) -> None:
    """In both frameworks, ops that read one key or one each, and whose outputs may be deleted."""
    tensors: Any = Fuse, LambdaOp, Delete
    arrays: Any = FuseArrays, numpyop.LambdaOp, numpyop.Delete

    for fuse, op, delete in (tensors, arrays):

        def work_of(size: int, fuse: Any = fuse, op: Any = op, delete: Any = delete) -> Any:
            ops = []
            for number, key in enumerate(numbered("y", size)):
                ops.append(op(first, Key(f"x{number}") if apart else "x", key))
                if deleted and number:
                    ops.append(delete(key))
            return lambda: fuse(ops)

        check_linear(work_of)


def test_a_square_is_seen() -> None:
    """The count finds a search in a list, which is no call."""

    def work_of(size: int) -> Callable[[], Any]:
        keys = numbered("k", size)
        return lambda: [key for key in numbered("k", size) if key in keys]

    with pytest.raises(AssertionError):
        check_linear(work_of)
