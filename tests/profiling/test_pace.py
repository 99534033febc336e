"""Which steps count: those between two runs of the same work at full pace. The clock is a list."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fastnet.profiling.blocks import LEAST_STEPS, Blocks
from fastnet.profiling.pace import Pace

Take = Callable[[list[float]], Pace]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """Take the pace after steps: given what the work takes each time."""

    def run(works: list[float], between: float = 1.0) -> Pace:
        pace, times = Pace(), []
        now = 100.0
        for work in works:
            now += between
            times += [now, now + work]
            now += work
        clock = iter(times)
        monkeypatch.setattr("fastnet.profiling.pace.perf_counter", lambda: next(clock))
        for _ in works:
            pace.take()
        return pace

    return run


def test_full_pace(take: Take) -> None:
    works = [1e-5] * 5 + [2e-5] * 2 + [1.02e-5] * 4
    pace = take(works)
    assert pace.best() == pytest.approx(1e-5)
    # a step is between two runs of the work: the one before it and its own
    expected = [True] * 5 + [False] * 3 + [True] * 3
    assert pace.is_full().tolist() == expected


def test_short_steps_share_a_run_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    # the work is done after the first step, is not due after two more, and is slow after the fourth
    clock = iter([1.0, 1.00001, 1.00002, 1.00003, 1.1, 1.2, 2.0, 2.00001])
    monkeypatch.setattr("fastnet.profiling.pace.perf_counter", lambda: next(clock))
    for _ in range(5):
        pace.take()
    assert list(clock) == []
    assert pace.is_full().tolist() == [True, False, False, False, False]


def test_nothing_was_measured() -> None:
    pace = Pace()
    assert pace.best() is None
    assert pace.is_full().tolist() == []


def test_blocks_are_of_steps_at_full_pace(take: Take) -> None:
    slow = np.arange(200) % 10 == 9
    times = np.where(slow, 5.0, 1.0)
    blocks = Blocks.of(take(np.where(slow, 3e-5, 1e-5).tolist()), 200, 1)
    assert blocks.medians(times) == (1.0,) * 20
    assert set(np.arange(200)[~slow]) > set(blocks.chosen)  # nor those after a slow moment


def test_all_count_where_too_few_are_at_full_pace(take: Take) -> None:
    """By how much the machine was slower is told, but for what took very long a few times."""
    works = [1e-5] * 10 + [1.5e-5] * 86 + [9e-3] * 4
    blocks = Blocks.of(take(works), 100, 1)
    assert len(blocks.chosen) == 100
    assert blocks.slowness == pytest.approx(1.5)
    assert Blocks.of(take([1e-5] * 50 + [1.5e-5] * 50), 100, 1).slowness == 1.0


def test_rounds_of_several_steps_are_whole() -> None:
    """Every fourth step updates: the median of single steps would not know of it."""
    times = np.tile([1.0, 1.0, 1.0, 9.0], 30)
    assert Blocks.of(None, 120, 4).medians(times) == (3.0,) * 10
    assert Blocks.of(None, 120, 1).medians(times) == (1.0,) * 20


def test_too_few() -> None:
    assert Blocks.of(None, LEAST_STEPS - 1, 1).medians(np.ones(LEAST_STEPS - 1)) == ()
    assert Blocks.of(None, LEAST_STEPS, 1).medians(np.ones(LEAST_STEPS)) == (1.0,) * 8
    assert Blocks.of(None, 3, 4).medians(np.ones(3)) == ()
