"""Times several programs in interleaved rounds.

Programs are timed in turn (A B C, then B C A, ...), so that a change of the machine's speed affects
all of them, and a ratio compares neighbouring times of one process. A round in which the system ran
something else is timed again.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.program import Program

_Name = TypeVar("_Name")

_MOST_LOOPS = 1_000_000
# Fresh arguments are made before the timed region and all live at once.
_MOST_FRESH_LOOPS = 4
_WARM_UP_CALLS = 3
_TRIES = 8
# A round is disturbed if its wall time exceeds its processor time by more than this part.
_MOST_WAITING = 0.02


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: ArrayLike) -> Spread:
        """Return the spread of `values`.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
            Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = np.percentile(values, [25, 50, 75])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Timing:
    """The rounds of one program.

    Attributes:
        loops: The calls of a round.
        rounds: Nanoseconds a step of each round, in the order in which they were timed.
    """

    loops: int
    rounds: NDArray[np.float64]


def clock(step: Callable[[Any], Any], arguments: Iterable[Any]) -> tuple[int, int]:
    """Return the wall time and the processor time of `step` over `arguments`, in nanoseconds.

    The garbage collector is disabled meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        worked = process_time_ns()
        start = perf_counter_ns()
        for argument in arguments:
            step(argument)
        wall = perf_counter_ns() - start
        return wall, process_time_ns() - worked
    finally:
        if collects:
            gc.enable()


def interleave(
    programs: Mapping[_Name, Program], rounds: int, round_ns: float
) -> dict[_Name, Timing]:
    """Time `programs` in interleaved rounds.

    Args:
        programs: The programs, by name.
        rounds: The number of rounds of each.
        round_ns: The approximate length of a round of one program.

    Returns:
        The timing of each program.
    """
    names = list(programs)
    loops = {name: _calls_per_round(program, round_ns) for name, program in programs.items()}
    taken: dict[_Name, list[float]] = {name: [] for name in names}
    for first in range(rounds):
        for offset in range(len(names)):
            name = names[(first + offset) % len(names)]
            steps = loops[name] * programs[name].steps_per_call
            taken[name].append(_undisturbed_round(programs[name], loops[name]) / steps)
    return {name: Timing(loops[name], np.array(taken[name])) for name in names}


def _calls_per_round(program: Program, round_ns: float) -> int:
    """Return how many calls of `program` fill a round, after a warm-up."""
    most = _MOST_LOOPS if program.fresh is None else _MOST_FRESH_LOOPS
    clock(program.step, program.arguments(_WARM_UP_CALLS))
    loops = 1
    while True:
        # The least of three, since one may be disturbed.
        taken = max(1, min(clock(program.step, program.arguments(loops))[0] for _ in range(3)))
        if taken * 2 >= round_ns or loops >= most:
            return min(most, max(1, round(loops * round_ns / taken)))
        loops = min(most, loops * 4)


def _undisturbed_round(program: Program, count: int) -> int:
    """Return the nanoseconds of `count` calls, or of the shortest try if all are disturbed."""
    shortest = sys.maxsize
    for _ in range(_TRIES):
        # An untimed call brings the program's data back into the caches.
        clock(program.step, program.arguments(1))
        wall, worked = clock(program.step, program.arguments(count))
        if wall - worked <= _MOST_WAITING * wall:
            return wall
        shortest = min(shortest, wall)
    return shortest
