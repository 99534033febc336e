"""The kernel from several threads at once: on plans of their own, and on one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kernel.ops import Delete, Op, new_state, plan_of
from tests.reference import Kernel

State = dict[str, Any]
THREADS = 8


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run work in several threads that start together; return, or raise, what came of it."""
    barrier = threading.Barrier(threads)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(start, range(threads)))


def add(amount: int) -> Callable[[Any, State], Any]:
    def forward(data: int, state: State) -> int:
        return data + amount

    return forward


def yield_to_others(data: Any, state: State) -> Any:
    time.sleep(0)
    return data


def steps(kernel: Kernel) -> int:
    return 2000 if kernel.compiled else 100


@pytest.mark.parametrize("count", [10, 100])
def test_one_plan_for_all(kernel: Kernel, count: int) -> None:
    ops = [
        Op(f"k{place}", f"k{place + 1}", yield_to_others if place % 7 == 3 else add(1))
        for place in range(count)
    ]
    ops += [
        Op(["k1", "k2"], ["a", "b"]),
        Op("a", "a", add(5)),
        Delete("b"),
        Op(["a", f"k{count}"], "sum", lambda data, state: sum(data)),
    ]
    plan = plan_of(kernel, ops, {"sum", "k5"})
    ones = sum(1 for place in range(count) if place % 7 != 3)

    def work(number: int) -> None:
        for step in range(steps(kernel) // 10):
            start = 1000 * number + step
            batch = {"k0": start, "other": number}
            result = kernel.BoundPlan(plan, new_state()).step_timed(batch, kernel.StampLog())
            assert result == {**batch, "k5": start + 4, "sum": (start + 6) + (start + ones)}

    at_once(work)
