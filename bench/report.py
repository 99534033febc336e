"""Measure workloads with every peer, and report the overhead of fastnet: `python -m bench.report`.

Each workload, or group of workloads, is measured in a fresh process of each interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from bench import machine, processes, tables
from bench.measure import Measured
from bench.results import Report
from bench.workloads import BY_NAME, TOGETHER

FE_PYTHON = "FASTNET_BENCH_FE_PYTHON"

# A name for the groups that measure growth.
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
    parser.add_argument("--quick", action="store_true", help="15 rounds of 1 ms: a rough look")
    parser.add_argument("--rounds", type=int, default=101, help="of each program (default: 101)")
    parser.add_argument("--threads", type=int, default=1, help="of each program (default: 1)")
    parser.add_argument(
        "--fe-python",
        default=os.environ.get(FE_PYTHON),
        metavar="PATH",
        help=f"an interpreter that has FastEstimator (default: ${FE_PYTHON})",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="write NAME.json, NAME.md and NAME.png there"
    )
    parser.add_argument("--name", default="report", help="for --save (default: report)")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing: show a saved report"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the report in Markdown, and save it on request.

    Returns:
        The exit status: 1 if a measurement failed. A goal that is missed is no failure.
    """
    options = _parser().parse_args(arguments)
    if options.from_json:
        report = Report.from_json(json.loads(options.from_json.read_text()))
    else:
        named = options.workloads or TOGETHER
        workloads = [one for name in named for one in _GROUPS.get(name, [name])]
        rounds, round_ms = (15, 1.0) if options.quick else (options.rounds, 2.0)
        pythons = {"main": sys.executable}
        if options.fe_python:
            pythons["FastEstimator's"] = options.fe_python
        report = _measure(pythons, workloads, options.peers, rounds, round_ms, options.threads)
    text = tables.to_markdown(report)
    print(text)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        path = options.save / options.name
        data = json.dumps(report.to_json(), indent=1)
        path.with_suffix(".json").write_text(f"{data}\n", encoding="utf-8")
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        from bench import plots

        plots.draw(report, options.save, options.name)
    return 1 if report.failed() else 0


def _measure(
    pythons: dict[str, str],
    names: Sequence[str],
    only: Sequence[str] | None,
    rounds: int,
    round_ms: float,
    threads: int,
) -> Report:
    """Measure each workload, or group of them, in a fresh process of each interpreter."""
    made = datetime.now(timezone.utc).isoformat(timespec="minutes")
    report = Report(made, machine.processor(), rounds, round_ms, threads=threads)
    settings = machine.settings_of_threads(threads)
    for number, name in enumerate(names, 1):
        for environment, python in pythons.items():
            print(f"[{number}/{len(names)}] {name} ({environment})", file=sys.stderr, flush=True)
            arguments = (TOGETHER[name], only, rounds, round_ms, threads)
            try:
                found = processes.call(
                    "bench.measure:measure", *arguments, python=python, variables=settings
                )
            except RuntimeError as error:
                report.failures.setdefault(environment, {})[name] = str(error)
            else:
                measured = [Measured(**one) for one in found]
                report.environments.setdefault(environment, []).extend(measured)
    return report


if __name__ == "__main__":
    sys.exit(main())
