"""Snapshots of plain objects: taken, and compared with what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

guards = pytest.importorskip("fastnet.guards", exc_type=ImportError)

OPS = 1000


class Op:
    """An op as a snapshot sees it: ten values in attributes and in containers.

    Args:
        index: Which one it is.
    """

    def __init__(self, index: int) -> None:
        self.inputs = [f"k{index}"]
        self.outputs = [f"k{index + 1}"]
        self.mode = {"train"}
        self.ds_id: set[str] = set()
        self.in_list = True
        self.out_list = False
        self.fn = len


class Slotted:
    """The same number of values in slots."""

    __slots__ = tuple("abcdefghij")

    def __init__(self, index: int) -> None:
        for name in self.__slots__:
            setattr(self, name, float(index))


ROOTS: dict[str, Callable[[], Any]] = {
    "ops": lambda: [Op(index) for index in range(OPS)],
    "slots": lambda: [Slotted(index) for index in range(OPS)],
    "dict": lambda: [dict.fromkeys(range(10 * OPS), 1.0)],
    "list": lambda: [[1.0] * 10 * OPS],
    "set": lambda: [set(range(10 * OPS))],
}


def _roots(name: str) -> list[tuple[str, Any]]:
    return [(f"root {index}", root) for index, root in enumerate(ROOTS[name]())]


@pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
def test_take(benchmark: Any, shallow: bool) -> None:
    benchmark.group = f"kernel: a snapshot of {OPS} ops"
    roots = _roots("ops")
    snapshot = benchmark(guards.Snapshot, roots, shallow=shallow)
    assert snapshot.is_unchanged()


@pytest.mark.parametrize("name", ROOTS)
def test_compare(benchmark: Any, name: str) -> None:
    benchmark.group = f"kernel: {10 * OPS} values compared"
    snapshot = guards.Snapshot(_roots(name), shallow=True)
    assert benchmark(snapshot.is_unchanged)
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info["nanoseconds for each value"] = seconds * 1e9 / (10 * OPS)
