"""Count the instructions an op adds to a step: `python -m bench.op_instructions torch DiceLoss`.

What the report of `op_cost` measures by the clock, counted by callgrind instead, so that a busy
machine does not matter: a step of a network of the op, less one of a network of an op that does
nothing, less the same calls of the framework written by hand. Each count is the least of some runs,
without one of no steps. Random numbers are drawn from the same seed in all.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import callgrind, machine, peers
from bench.marks import mark, start_counting
from bench.program import Program
from bench.tables import Table
from bench.workloads import ALL
from bench.workloads.op_cost import OpCost
from bench.workloads.tf_op_cost import TFOpCost

_GROUPS = {"torch": "op_cost", "tf": "tf_op_cost"}
# The first steps of a program are not as the rest. Some runs have more to do than steps, such as to
# get memory from the system.
_WARM_UP_STEPS, _RUNS = 20, 4
# Of fewer instructions by hand than this an op adds no share: there are no calls but a dict's.
_FEWEST = 5000
# What is counted of a workload: steps of four programs.
_PARTS = ("step", "step of nothing", "by hand", "by hand, of nothing")


def workloads_of(framework: str, names: Sequence[str]) -> list[OpCost | TFOpCost]:
    """Find the workloads of ops.

    Args:
        framework: "torch" or "tf", where ops run eagerly.
        names: Names of cases, or of classes, which are what titles begin with. None for all.

    Returns:
        The workloads, in the order of the report.

    Raises:
        ValueError: If there is nothing of a name.
    """
    group = [
        each
        for each in ALL
        if isinstance(each, OpCost | TFOpCost) and each.group == _GROUPS[framework]
    ]
    found = {
        name: [one for one in group if name == one.case.name or _is_of(one.case.title, name)]
        for name in names
    }
    for name, ones in found.items():
        if not ones:
            known = ", ".join(one.case.name for one in group)
            raise ValueError(f"There is no op {name!r}. There are: {known}.")
    return [one for one in group if not names or any(one in ones for ones in found.values())]


def _is_of(title: str, name: str) -> bool:
    """Return whether a title begins with the name of a class."""
    return re.match(rf"{re.escape(name)}\b", title) is not None


def _run(workloads: Sequence[OpCost | TFOpCost], steps: int) -> None:
    """Run all that is counted, with a mark at each end of it; this is what callgrind watches."""
    machine.use_one_thread(workloads[0].framework)
    all_programs = [_programs(workload) for workload in workloads]
    for workload, programs in zip(workloads, all_programs, strict=True):
        for program in programs:
            _repeat(workload, program, _WARM_UP_STEPS)
    start_counting()
    gc.disable()
    mark()
    for workload, programs in zip(workloads, all_programs, strict=True):
        for program in programs:
            for length in (0, *[steps] * _RUNS):
                _repeat(workload, program, length)
                mark()


def _programs(workload: OpCost | TFOpCost) -> list[Program]:
    """Return a program for each of the parts."""
    programs = []
    for peer in ("fastnet", workload.baseline):
        program = peers.load(peer).make(workload)
        assert program is not None, f"{peer} has no {workload.name}"
        programs += [program, program.plain or Program(_nothing)]
    return programs


def _nothing(batch: object) -> None:
    """Do nothing, where nothing is to be taken off a step."""


def _repeat(workload: OpCost | TFOpCost, program: Program, steps: int) -> None:
    workload.seed()
    for argument in program.arguments(steps):
        program.step(argument)


def count(workloads: Sequence[OpCost | TFOpCost], steps: int) -> list[dict[str, float]]:
    """Count in a fresh process.

    Args:
        workloads: What to count, all of one framework.
        steps: How many steps a run has.

    Returns:
        For each workload the instructions of a step of each of its parts.

    Raises:
        NoValgrind: If there is no valgrind.
        RuntimeError: If the process fails, with what it printed.
    """
    command = [sys.executable, "-m", "bench.op_instructions", workloads[0].framework]
    command += [workload.case.name for workload in workloads]
    command += ["--child", "--steps", str(steps)]
    runs = iter(callgrind.count(command, within="/fastnet/_", late=True))

    def next_count() -> float:
        nothing = next(runs).total
        return (min([next(runs).total for _ in range(_RUNS)]) - nothing) / steps

    return [{part: next_count() for part in _PARTS} for _ in workloads]


def added(counted: dict[str, float]) -> tuple[float, float]:
    """Return the instructions of an op's calls by hand, and those that the op adds to them.

    Args:
        counted: What `count` counted of a workload.
    """
    step, nothing, by_hand, nothing_by_hand = (counted[part] for part in _PARTS)
    calls = by_hand - nothing_by_hand
    return calls, step - nothing - calls


def table(workloads: Sequence[OpCost | TFOpCost], all_counted: Sequence[dict[str, float]]) -> Table:
    """Tabulate what was counted.

    Args:
        workloads: What was counted, all of one framework.
        all_counted: What `count` returned for them.
    """
    rows = []
    for workload, counted in zip(workloads, all_counted, strict=True):
        calls, more = added(counted)
        figures = [f"{figure:,.0f}" for figure in (calls, counted["step"], more)]
        share = f"{100 * more / calls:.1f} %" if calls >= _FEWEST else "-"
        rows.append([workload.case.title, *figures, share])
    versions = machine.versions(workloads[0].framework)
    measured = ("python", "torch", "numpy", "tensorflow-cpu", "keras", "fastnet")
    note = ", ".join(f"{name} {versions[name]}" for name in measured if name in versions)
    columns = ["op", "by hand", "fastnet's step", "adds", "of by hand"]
    return Table("Instructions that an op adds", f"Counted with {note}.", columns, rows, left=1)


def main(arguments: list[str] | None = None) -> int:
    """Count, and print a line for each op."""
    parser = argparse.ArgumentParser(prog="python -m bench.op_instructions", description=__doc__)
    parser.add_argument("framework", choices=_GROUPS)
    parser.add_argument("ops", nargs="*", help="classes, or names of cases (default: all)")
    parser.add_argument("--steps", type=int, default=20, help="of a run (default: 20)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write Markdown there too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(arguments)
    try:
        workloads = workloads_of(options.framework, options.ops)
    except ValueError as error:
        parser.error(str(error))
    if options.child:
        _run(workloads, options.steps)
        return 0
    try:
        all_counted = count(workloads, options.steps)
    except callgrind.NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return 2
    found = table(workloads, all_counted)
    print(f"{'':36}{'by hand':>12}{'step':>12}{'adds':>12}{'share':>9}")
    for title, *figures, share in found.rows:
        print(f"{title:36}{''.join(f'{figure:>12}' for figure in figures)}{share:>9}")
    if options.save is not None:
        options.save.write_text(f"{found.to_markdown()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
