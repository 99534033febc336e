"""Measure every workload with every peer, and say what fastnet costs: `python -m bench.report`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from bench import machine, plot, plot_growth, runner, tables
from bench.results import Report, from_json
from bench.workloads import BY_NAME, TOGETHER

FE_PYTHON = "FASTNET_BENCH_FE_PYTHON"
OWN = "main"
FE = "FastEstimator's"

# The groups of workloads that show how a cost grows, and a name for all of them.
GROWTH = "growth"
_GROUPS = {GROWTH: [name for name, each in TOGETHER.items() if BY_NAME[each[0]].grows]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=[*TOGETHER, *_GROUPS],
        metavar="NAME",
        help=f"only these; {GROWTH} stands for {', '.join(_GROUPS[GROWTH])}",
    )
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these, and the baselines")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a rough look")
    parser.add_argument("--rounds", type=int, help="rounds of each program")
    parser.add_argument(
        "--fe-python",
        default=os.environ.get(FE_PYTHON),
        metavar="PATH",
        help=f"an interpreter that has FastEstimator (default: ${FE_PYTHON})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the ratios, and beside that file what grows: FILE_ops.png, ...",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="write NAME.json, NAME.md and NAME.png there"
    )
    parser.add_argument("--name", default="report", help="for --save (default: report)")
    parser.add_argument("--plain", action="store_true", help="print Markdown instead of color")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing: show what was saved"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the report.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status: 1 if any measurement failed. A goal that is missed is no failure.
    """
    options = _parser().parse_args(arguments)
    if options.from_json:
        report = from_json(json.loads(options.from_json.read_text()))
    else:
        settings = runner.QUICK if options.quick else runner.Settings()
        if options.rounds:
            settings = replace(settings, rounds=options.rounds)
        pythons = {OWN: sys.executable}
        if options.fe_python:
            pythons[FE] = options.fe_python
        named = options.workloads or TOGETHER
        workloads = [one for name in named for one in _GROUPS.get(name, [name])]
        report = _measure(pythons, workloads, settings, options.peers)
    _write(report, options)
    if options.plain or not _has_rich():
        print(tables.to_markdown(report))
    else:
        tables.show(report)
    failed = any(report.failures.values()) or any(
        measured.failures for found in report.environments.values() for measured in found
    )
    return 1 if failed else 0


def _measure(
    pythons: dict[str, str],
    workloads: list[str],
    settings: runner.Settings,
    only: list[str] | None,
) -> Report:
    """Measure each workload, or group of them, in a fresh process of each interpreter."""
    report = Report(
        made=datetime.now(timezone.utc).isoformat(timespec="minutes"),
        processor=machine.processor(),
        rounds=settings.rounds,
        round_ms=settings.round_ms,
    )
    tasks = [(name, environment) for name in workloads for environment in pythons]
    with _progress(len(tasks)) as progress:
        for name, environment in tasks:
            progress(f"{name} ({environment})")
            try:
                measured = runner.run(pythons[environment], TOGETHER[name], settings, only)
            except (RuntimeError, OSError, runner.Expired) as error:
                report.failures.setdefault(environment, {})[name] = str(error)
            else:
                report.environments.setdefault(environment, []).extend(measured)
    return report


def _write(report: Report, options: argparse.Namespace) -> None:
    """Write the files that were asked for."""
    places = {"json": options.json, "markdown": options.markdown, "plot": options.plot}
    if options.save:
        endings = {"json": "json", "markdown": "md", "plot": "png"}
        places = {
            kind: places[kind] or options.save / f"{options.name}.{ending}"
            for kind, ending in endings.items()
        }
    for place in filter(None, places.values()):
        place.parent.mkdir(parents=True, exist_ok=True)
    if places["json"]:
        places["json"].write_text(json.dumps(asdict(report), indent=1) + "\n")
    if places["markdown"]:
        places["markdown"].write_text(tables.to_markdown(report))
    if places["plot"]:
        plot.draw(report, places["plot"])
        plot.draw_step(report, places["plot"].with_stem(f"{places['plot'].stem}_step"))
        plot_growth.draw(report, places["plot"].parent, places["plot"].stem)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show on stderr how far the report is; `advance(now)` says what is being measured now."""
    if not _has_rich():
        numbers = iter(range(1, total + 1))

        def line(now: str) -> None:
            print(f"[{next(numbers)}/{total}] {now}", file=sys.stderr, flush=True)

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (BarColumn(), MofNCompleteColumn(), Elapsed(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def advance(now: str) -> None:
            nonlocal started
            progress.update(task, description=now, completed=started)
            started += 1

        yield advance


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


if __name__ == "__main__":
    sys.exit(main())
