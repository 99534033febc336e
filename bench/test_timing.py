"""The timer, and what is computed from its rounds."""

from __future__ import annotations

import gc
import time
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from bench import measure, timing
from bench.program import Program
from bench.timing import Timing


def test_the_ratio_of_two_programs_is_that_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def advance(nanoseconds: int) -> None:
        nonlocal now
        now += nanoseconds

    for name in ("perf_counter_ns", "process_time_ns"):
        monkeypatch.setattr(timing, name, lambda: now)
    programs = {
        "short": Program(advance, 2_000_000),
        "long": Program(advance, 6_000_000),
        "many": Program(advance, 8_000_000, steps_per_call=4),
    }
    timings = timing.interleave(programs, rounds=5, round_ns=1_000_000)
    assert (timings["long"].rounds / timings["short"].rounds).tolist() == [3.0] * 5
    assert (timings["many"].rounds / timings["short"].rounds).tolist() == [1.0] * 5


def test_rounds_are_interleaved_and_begin_in_turn() -> None:
    calls: list[str] = []
    programs = {name: Program(calls.append, name) for name in "abc"}
    timings = timing.interleave(programs, rounds=3, round_ns=1)
    order = [name for name, _ in groupby(calls)]
    assert "".join(order[-9:]) == "abcbcacab"
    assert all(len(timed.rounds) == 3 for timed in timings.values())


def test_a_disturbed_round_is_timed_again() -> None:
    waits = iter([0.0] * 14 + [0.05])
    calls: list[float] = []

    def step(_: Any) -> None:
        calls.append(next(waits, 0.0))
        time.sleep(calls[-1])

    (timed,) = timing.interleave({"": Program(step)}, rounds=3, round_ns=1).values()
    assert 0.05 in calls
    assert max(timed.rounds) < 50e6


def test_the_garbage_collector_is_disabled_in_a_round() -> None:
    seen: list[bool] = []
    timing.clock(lambda _: seen.append(gc.isenabled()), [None])
    assert seen == [False]
    with pytest.raises(ZeroDivisionError):
        timing.clock(lambda _: 1 / 0, [None])
    assert gc.isenabled()


def test_fresh_arguments_are_used_once() -> None:
    used: list[object] = []
    timing.interleave({"a": Program(used.append, fresh=object)}, rounds=4, round_ns=1_000_000)
    assert len(set(map(id, used))) == len(used)


def test_plain_steps_are_subtracted() -> None:
    rounds = {"fastnet": (9, 10, 11), ("fastnet", "plain"): (3, 2, 4), "bare": (5, 6, 7)}
    timings = {name: Timing(1, np.array(each, float)) for name, each in rounds.items()}
    added = measure.excess(timings, "fastnet", "bare")
    # The differences of the rounds are 1, 2 and 0; that of the shortest is 9 - 2 - 5.
    assert (added["median"], added["least"], added["step"]) == (1.0, 2.0, 5.0)
    assert measure.excess(timings, "fastnet")["median"] == 7.0
