"""Count the instructions an op adds to a step: `python -m bench.op_instructions dice`.

The difference that the workloads `op_cost` time, counted by callgrind, so that a busy machine does
not matter: a step of a network of the op, less that of an op that does nothing, less the same calls
of the framework written by hand. Random numbers are drawn from the same seed. It needs valgrind.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from bench import callgrind, machine, pages, peers, processes
from bench.program import Program
from bench.tables import markdown_table
from bench.workloads import BY_NAME, TOGETHER
from bench.workloads.ops import OpCost

_WARM_UP_STEPS, _STEPS, _RUNS = 20, 20, 4
# With fewer hand-written instructions than this there is no meaningful percentage.
_FEWEST = 5000
_PARTS = ("step", "step of nothing", "by hand", "by hand, of nothing")


def run_all(names: Sequence[str]) -> None:
    """Run everything that is counted, with a mark at each end of it, under callgrind."""
    machine.use_one_thread("torch")
    programs = [pair for name in names for pair in _programs(BY_NAME[name])]
    for workload, program in programs:
        _repeat(workload, program, _WARM_UP_STEPS)
    callgrind.start_counting()
    gc.disable()
    callgrind.mark()
    for workload, program in programs:
        for length in (0, *[_STEPS] * _RUNS):
            _repeat(workload, program, length)
            callgrind.mark()


def _programs(workload: OpCost) -> list[tuple[OpCost, Program]]:
    """Return a program for each of the parts."""
    programs = []
    for peer in ("fastnet", "bare"):
        program = peers.make(peer, workload)
        programs += [program, program.plain or Program(_nothing)]
    return [(workload, program) for program in programs]


def _nothing(batch: object) -> None:
    """Do nothing."""


def _repeat(workload: OpCost, program: Program, steps: int) -> None:
    workload.seed()
    for argument in program.arguments(steps):
        program.step(argument)


def count(names: Sequence[str]) -> list[dict[str, float]]:
    """Count the instructions of a step of each part of each workload, in a fresh process.

    Raises:
        NoValgrind: If valgrind is not installed.
        RuntimeError: If the process fails.
    """
    command = processes.command("bench.op_instructions:run_all", [names])
    runs = iter(callgrind.count(command, within="/fastnet/_", late=True))
    return [{part: callgrind.least_of(runs, _RUNS, _STEPS).total for part in _PARTS} for _ in names]


def page(ops: Sequence[str]) -> str:
    """Return the page of some ops, by the names of their cases; of all ops without names."""
    names = [f"op_{op}" for op in ops] or TOGETHER["op_cost"]
    rows = []
    for name, counted in zip(names, count(names), strict=True):
        calls = counted["by hand"] - counted["by hand, of nothing"]
        added = counted["step"] - counted["step of nothing"] - calls
        figures = [f"{figure:,.0f}" for figure in (calls, counted["step"], added)]
        share = f"{100 * added / calls:.1f} %" if calls >= _FEWEST else "-"
        rows.append([BY_NAME[name].title, *figures, share])
    columns = ["op", "hand-written calls", "fastnet's step", "the op adds", "of the calls"]
    return (
        f"# Instructions that an op adds\n\nCounted with {machine.version_note('torch')}.\n\n"
        f"{markdown_table(columns, rows, left=1)}\n"
    )


if __name__ == "__main__":
    cases = [name.removeprefix("op_") for name in TOGETHER["op_cost"]]
    ops = {"nargs": "*", "metavar": "OP", "help": f"of {', '.join(cases)} (default: all)"}
    sys.exit(pages.run("op_instructions", __doc__, page, ops=ops))
