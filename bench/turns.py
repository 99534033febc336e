"""The clock for small differences of long steps: single steps of several programs, in turn.

A round of many steps is disturbed whenever one of them is; a single step that nothing disturbs is
found on a busy machine as well. So each program's quiet steps are compared, and not its rounds. The
turns are shuffled: a step that always came behind a long one would always find the caches cold.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from time import perf_counter_ns

from bench.program import Program, nothing, unchanged

# Of a program's steps these are the quiet ones. The very shortest is an accident as well.
_QUIET_PART = 0.05
_FEWEST, _MOST = 40, 4000
_WARM_UP_STEPS = 20
_CLOCK = ""


def quiet_steps(
    programs: Mapping[str, Program], budget_ns: int, before: Callable[[], None] = nothing
) -> dict[str, float]:
    """Time single steps of programs, one of each in shuffled turns, over and over again.

    Args:
        programs: What to time, by name; each call is one step.
        budget_ns: About how long to time each program, in nanoseconds.
        before: What is done before each step, outside the clock: with the same seed for all
            programs' steps, those that draw random numbers have the same work to do.

    Returns:
        For each name the nanoseconds of its quiet steps: what a twentieth of all are not above,
        less what reading the clock takes.
    """
    timed = {_CLOCK: Program(unchanged), **programs}
    for program in timed.values():
        for _ in range(_WARM_UP_STEPS):
            _time(program)
    longest = max(_time(program) for program in timed.values())
    taken: dict[str, list[int]] = {name: [] for name in timed}
    turns = list(timed.items())
    shuffle = random.Random(0).shuffle
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(max(_FEWEST, min(_MOST, budget_ns // longest))):
            shuffle(turns)
            for name, program in turns:
                before()
                taken[name].append(_time(program))
    finally:
        if collects:
            gc.enable()
    quiet = {name: sorted(each)[int(len(each) * _QUIET_PART)] for name, each in taken.items()}
    return {name: float(quiet[name] - quiet[_CLOCK]) for name in programs}


def over_calls(quiet: Mapping[str, float], peer: str, baseline: str) -> dict[str, float]:
    """Return by how much a quiet step of a peer is longer than quiet calls of the baseline.

    Args:
        quiet: The quiet steps of both, and of a plain step of either, as "NAME, plain".
        peer: The peer.
        baseline: The baseline.

    Returns:
        Nanoseconds: the difference under "least", and under "step" what the calls take.
    """
    own, calls = (quiet[name] - quiet.get(f"{name}, plain", 0.0) for name in (peer, baseline))
    return {"least": own - calls, "step": calls}


def _time(program: Program) -> int:
    step = program.step
    (argument,) = program.arguments(1)
    start = perf_counter_ns()
    step(argument)
    return perf_counter_ns() - start
