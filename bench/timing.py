"""The clock: rounds of several programs, interleaved, and what to make of them.

Programs are timed in turn (A B C, then B C A, ...), so that whatever the machine does meanwhile
falls on all of them alike, and a ratio of two programs comes from one process and one run. A round
in which the system ran something else meanwhile is timed again: what is left is the program's own.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, TypeVar

from bench.program import Program

_Name = TypeVar("_Name")

_MOST_LOOPS = 1_000_000
# Fresh arguments are made before the clock starts and all live at once: a few are enough.
_MOST_FRESH_LOOPS = 4
_WARM_UP_CALLS = 3
# How often the length of a round is looked at: a single look may be disturbed.
_LOOKS = 3
# A round is timed again if the processor worked on something else for more than this part of it,
# but not for ever: a program may wait for something of its own accord.
_MOST_TAKEN_AWAY = 0.02
_TRIES = 8


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
            Spread(median=3.0, low=2.0, high=4.0)
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Timing:
    """The rounds of one program: nanoseconds a step, in the order in which they were timed."""

    loops: int
    rounds: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """The median round and its quartiles, in nanoseconds."""
        return Spread.of(self.rounds)

    def ratio_to(self, other: Timing) -> Spread:
        """Return how many times `other` this costs: median and quartiles of the rounds' ratios.

        The two times of a round are neighbours, so that a machine that gets slower for a while
        slows both. A ratio of two medians would take them from different whiles.

        Example:
            >>> Timing(1, (2.0, 4.0, 6.0)).ratio_to(Timing(1, (1.0, 2.0, 3.0)))
            Spread(median=2.0, low=2.0, high=2.0)
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])

    def less(self, other: Timing) -> Timing:
        """Return this without the time of `other`, round by round.

        Example:
            >>> Timing(1, (5.0, 7.0)).less(Timing(1, (1.0, 2.0))).rounds
            (4.0, 5.0)
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Timing(self.loops, tuple(mine - theirs for mine, theirs in pairs))

    def excess_over(self, other: Timing) -> Spread:
        """Return how much longer than `other` this takes, in nanoseconds, round by round.

        Example:
            >>> Timing(1, (2.0, 5.0, 6.0)).excess_over(Timing(1, (1.0, 2.0, 3.0)))
            Spread(median=3.0, low=2.0, high=3.0)
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Spread.of([mine - theirs for mine, theirs in pairs])


@dataclass(frozen=True)
class Elapsed:
    """How long something took, in nanoseconds.

    Attributes:
        wall: By the clock on the wall.
        processor: What of that the processor worked for this process. A framework may run a step in
            a thread of its own while this one waits.
    """

    wall: int
    processor: int

    @property
    def disturbed(self) -> bool:
        """Whether the processor was taken away for a notable part of the time."""
        return self.wall - self.processor > _MOST_TAKEN_AWAY * self.wall


def clock(step: Callable[[Any], Any], arguments: Iterable[Any]) -> Elapsed:
    """Return how long `step` takes over `arguments`, the garbage collector off."""
    collects = gc.isenabled()
    gc.disable()
    try:
        worked = process_time_ns()
        start = perf_counter_ns()
        for argument in arguments:
            step(argument)
        wall = perf_counter_ns() - start
        return Elapsed(wall, process_time_ns() - worked)
    finally:
        if collects:
            gc.enable()


def calls_per_round(program: Program, round_ns: int) -> int:
    """Return how many calls of `program` fill a round, after warming it up."""
    most = _MOST_LOOPS if program.fresh is None else _MOST_FRESH_LOOPS
    clock(program.step, program.arguments(_WARM_UP_CALLS))
    loops = 1
    while True:
        looks = [clock(program.step, program.arguments(loops)).wall for _ in range(_LOOKS)]
        taken = max(1, min(looks))
        if taken * 2 >= round_ns or loops >= most:
            return min(most, max(1, round(loops * round_ns / taken)))
        loops = min(most, loops * 4)


def _undisturbed_round(program: Program, count: int) -> int:
    """Return the nanoseconds of `count` calls: the shortest of some tries if all are disturbed."""
    shortest = sys.maxsize
    for _ in range(_TRIES):
        # The caches hold another program's data: an untimed call brings this one's back.
        clock(program.step, program.arguments(1))
        elapsed = clock(program.step, program.arguments(count))
        if not elapsed.disturbed:
            return elapsed.wall
        shortest = min(shortest, elapsed.wall)
    return shortest


def interleave(
    programs: Mapping[_Name, Program], rounds: int, round_ns: int
) -> dict[_Name, Timing]:
    """Time `programs` in interleaved rounds.

    Args:
        programs: What to time, by name.
        rounds: How often each is timed.
        round_ns: About how long each round of each program lasts, in nanoseconds.

    Returns:
        A timing for each name, with as many rounds each.
    """
    names = list(programs)
    loops = {name: calls_per_round(program, round_ns) for name, program in programs.items()}
    taken: dict[_Name, list[float]] = {name: [] for name in names}
    for first in range(rounds):
        for offset in range(len(names)):
            name = names[(first + offset) % len(names)]
            program, count = programs[name], loops[name]
            program.before_a_round()
            nanoseconds = _undisturbed_round(program, count)
            taken[name].append(nanoseconds / (count * program.steps_per_call))
    return {name: Timing(loops[name], tuple(taken[name])) for name in names}
