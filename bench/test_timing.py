"""The clock and the arithmetic that every number of the report goes through."""

from __future__ import annotations

import gc
import time
from itertools import groupby
from typing import Any

import pytest

from bench import timing
from bench.program import Program


class _Clock:
    """A clock that only programs move, whatever else the machine does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0
        for name in ("perf_counter_ns", "process_time_ns"):
            monkeypatch.setattr(timing, name, lambda: self._now)

    def program(self, nanoseconds: int) -> Program:
        """Return a program whose step takes so long."""
        return Program(self._pass, nanoseconds)

    def _pass(self, nanoseconds: int) -> None:
        self._now += nanoseconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


def test_ratio_of_two_programs_is_that_of_their_times(clock: _Clock) -> None:
    programs = {"short": clock.program(2_000_000), "long": clock.program(6_000_000)}
    timings = timing.interleave(programs, rounds=5, round_ns=1_000_000)
    ratio = timings["long"].ratio_to(timings["short"])
    assert (ratio.low, ratio.median, ratio.high) == (3, 3, 3)


def test_excess_is_the_difference_of_the_times(clock: _Clock) -> None:
    programs = {"short": clock.program(2_000_000), "long": clock.program(6_000_000)}
    timings = timing.interleave(programs, rounds=5, round_ns=1_000_000)
    excess = timings["long"].excess_over(timings["short"])
    assert excess.median == 4e6


def test_less_takes_off_round_by_round() -> None:
    whole, part = timing.Timing(3, (5.0, 7.0)), timing.Timing(9, (1.0, 2.0))
    assert whole.less(part) == timing.Timing(3, (4.0, 5.0))


def test_rounds_are_interleaved_and_take_turns_to_be_first() -> None:
    calls: list[str] = []
    programs = {name: Program(calls.append, name) for name in "abc"}
    timings = timing.interleave(programs, rounds=3, round_ns=1)
    # A round is at least an untimed call and a timed one; disturbed rounds are timed again.
    order = [name for name, _ in groupby(calls)]
    assert "".join(order[-9:]) == "abcbcacab"
    assert all(len(timed.rounds) == 3 for timed in timings.values())


def test_what_comes_before_a_round_is_done_once_and_not_timed() -> None:
    # on the clock the garbage collector is off
    done: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        done.append((what, gc.isenabled()))

    program = Program(note, "step", before_a_round=lambda: note("prepared"))
    timing.interleave({"": program}, rounds=3, round_ns=1)
    assert done.count(("prepared", True)) == 3
    assert set(done) == {("prepared", True), ("step", False)}
    assert [what for (what, _), _ in groupby(done)][-6:] == ["prepared", "step"] * 3


def test_a_round_that_waits_counts_as_disturbed() -> None:
    assert timing.clock(time.sleep, [0.01]).disturbed
    assert timing.Elapsed(wall=1000, processor=600).disturbed
    assert not timing.Elapsed(wall=1000, processor=995).disturbed


def test_the_garbage_collector_is_off_on_the_clock_and_on_again_after_it() -> None:
    seen: list[bool] = []
    timing.clock(lambda _: seen.append(gc.isenabled()), [None])
    assert seen == [False]
    assert gc.isenabled()


def test_the_garbage_collector_is_on_again_after_an_error() -> None:
    def fail(_: Any) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        timing.clock(fail, [None])
    assert gc.isenabled()


def test_fresh_arguments_are_used_once() -> None:
    made: list[object] = []
    used: list[object] = []

    def fresh() -> object:
        made.append(object())
        return made[-1]

    timing.interleave({"a": Program(used.append, fresh=fresh)}, rounds=4, round_ns=1_000_000)
    assert made == used
    assert len(set(map(id, used))) == len(used)


def test_a_call_of_many_steps_is_counted_as_many() -> None:
    programs = {
        "one": Program(time.sleep, 0.004),
        "many": Program(time.sleep, 0.004, steps_per_call=4),
    }
    timings = timing.interleave(programs, rounds=5, round_ns=1_000_000)
    assert timings["one"].ratio_to(timings["many"]).median == pytest.approx(4, rel=0.3)
