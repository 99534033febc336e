"""The times of compiled and uncompiled steps, by a clock that the tests set."""

from __future__ import annotations

import pytest

from fastnet.network import step_times
from fastnet.network.step_times import StepTimes


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that uncompiled steps take, one after the other."""
    seconds: list[float] = []
    now = [0.0]

    def clock() -> float:
        return now[0]

    def step(self: StepTimes) -> None:
        duration = seconds.pop(0)
        StepTimes.run_uncompiled(self, lambda: now.__setitem__(0, now[0] + duration))

    monkeypatch.setattr(step_times, "perf_counter", clock)
    monkeypatch.setattr(StepTimes, "run", step, raising=False)
    return seconds


def times_of(uncompiled: list[float], compiled: list[float]) -> StepTimes:
    times = StepTimes()
    while times.awaits_uncompiled and uncompiled:
        times.run()  # type: ignore[attr-defined]
    for seconds in compiled:
        times.add_compiled(seconds)
    return times


def test_times_are_complete_after_two_and_twenty_steps(uncompiled: list[float]) -> None:
    uncompiled += [1.0]
    assert not times_of(uncompiled, [2.0] * 20).is_complete
    uncompiled += [1.0, 1.0]
    assert not times_of(uncompiled, [2.0] * 19).is_complete
    uncompiled += [1.0, 1.0]
    assert times_of(uncompiled, [2.0] * 20).is_complete


def test_fastest_steps_are_compared(uncompiled: list[float]) -> None:
    uncompiled += [0.010, 0.007]
    times = times_of(uncompiled, [0.5] * 19 + [0.009])
    assert times.describe_if_slower("eagerly") == (
        "a compiled step takes 9 ms, and one that runs eagerly 7 ms, the fastest of 20 and 2 steps"
    )


@pytest.mark.parametrize("compiled", [0.007, 0.0083])
def test_difference_below_a_fifth_is_not_described(
    uncompiled: list[float], compiled: float
) -> None:
    uncompiled += [0.007, 0.010]
    assert times_of(uncompiled, [compiled] * 20).describe_if_slower("eagerly") is None
