"""Count the instructions an op adds to a step: `python -m bench.op_instructions DiceLoss`.

The difference that the workloads `op_cost` time, counted by callgrind, so that a busy machine
does not matter: a step of a network of the op, less that of an op that does nothing, less the same
calls of the framework written by hand. Random numbers are drawn from the same seed. It needs
valgrind.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import callgrind, machine, peers, processes
from bench.program import Program
from bench.tables import markdown_table
from bench.workloads import BY_NAME, TOGETHER
from bench.workloads.ops import OpCost

_WARM_UP_STEPS, _RUNS = 20, 4
# With fewer hand-written instructions than this there is no meaningful percentage.
_FEWEST = 5000
_PARTS = ("step", "step of nothing", "by hand", "by hand, of nothing")


def workloads_of(names: Sequence[str]) -> list[OpCost]:
    """Find the workloads of ops by the names of cases or classes; all without names.

    Raises:
        ValueError: If there is no op of a name.
    """
    group = [BY_NAME[name] for name in TOGETHER["op_cost"]]
    known = [one for one in group if isinstance(one, OpCost)]
    chosen = {
        name: [
            one
            for one in known
            if name == one.case.name or re.match(rf"{re.escape(name)}\b", one.case.title)
        ]
        for name in names
    }
    for name, found in chosen.items():
        if not found:
            listed = ", ".join(one.case.name for one in known)
            raise ValueError(f"There is no op {name!r}. There are: {listed}.")
    return [one for one in known if not names or any(one in found for found in chosen.values())]


def run_all(names: Sequence[str], steps: int) -> None:
    """Run everything that is counted, with a mark at each end of it, under callgrind."""
    workloads = [one for one in map(BY_NAME.__getitem__, names) if isinstance(one, OpCost)]
    machine.use_one_thread("torch")
    programs = [(one, program) for one in workloads for program in _programs(one)]
    for workload, program in programs:
        _repeat(workload, program, _WARM_UP_STEPS)
    callgrind.start_counting()
    gc.disable()
    callgrind.mark()
    for workload, program in programs:
        for length in (0, *[steps] * _RUNS):
            _repeat(workload, program, length)
            callgrind.mark()


def _programs(workload: OpCost) -> list[Program]:
    """Return a program for each of the parts."""
    programs = []
    for peer in ("fastnet", workload.baseline):
        program = peers.make(peer, workload)
        assert program is not None, f"{peer} has no {workload.name}"
        programs += [program, program.plain or Program(_nothing)]
    return programs


def _nothing(batch: object) -> None:
    """Do nothing."""


def _repeat(workload: OpCost, program: Program, steps: int) -> None:
    workload.seed()
    for argument in program.arguments(steps):
        program.step(argument)


def count(workloads: Sequence[OpCost], steps: int) -> list[dict[str, float]]:
    """Count the instructions of a step of each part of each workload, in a fresh process.

    Raises:
        NoValgrind: If valgrind is not installed.
        RuntimeError: If the process fails.
    """
    names = [workload.name for workload in workloads]
    command = processes.command("bench.op_instructions:run_all", [names, steps])
    runs = iter(callgrind.count(command, within="/fastnet/_", late=True))
    return [
        {part: callgrind.least_of(runs, _RUNS, steps).total for part in _PARTS} for _ in workloads
    ]


def table(workloads: Sequence[OpCost], counts: Sequence[dict[str, float]]) -> str:
    """Return the table of the counts."""
    rows = []
    for workload, counted in zip(workloads, counts, strict=True):
        calls = counted["by hand"] - counted["by hand, of nothing"]
        added = counted["step"] - counted["step of nothing"] - calls
        figures = [f"{figure:,.0f}" for figure in (calls, counted["step"], added)]
        share = f"{100 * added / calls:.1f} %" if calls >= _FEWEST else "-"
        rows.append([workload.case.title, *figures, share])
    columns = ["op", "hand-written calls", "fastnet's step", "the op adds", "of the calls"]
    return markdown_table(columns, rows, left=1)


def main(arguments: list[str] | None = None) -> int:
    """Count, print the page, and save it on request.

    Returns:
        The exit status: 2 without valgrind.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.op_instructions", description=__doc__)
    parser.add_argument("ops", nargs="*", help="classes, or names of cases (default: all)")
    parser.add_argument("--steps", type=int, default=20, help="of a run (default: 20)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the Markdown there")
    options = parser.parse_args(arguments)
    try:
        workloads = workloads_of(options.ops)
    except ValueError as error:
        parser.error(str(error))
    try:
        counts = count(workloads, options.steps)
    except callgrind.NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return 2
    versions = machine.versions("torch")
    measured = ("python", "torch", "numpy", "fastnet")
    note = ", ".join(f"{name} {versions[name]}" for name in measured if name in versions)
    text = (
        f"## Instructions that an op adds\n\nCounted with {note}.\n\n{table(workloads, counts)}\n"
    )
    print(text)
    if options.save is not None:
        options.save.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
