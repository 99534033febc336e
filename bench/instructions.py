"""Count the instructions of the kernel with callgrind: `python -m bench.instructions`.

Each figure has two numbers: all instructions, including those of the interpreter's functions, and
the kernel's own. Both are reproducible on a busy machine. `--check` compares them with the
committed figures and fails if one has risen by 5 %: the kernel's own on any build of the Python
version that recorded them, all of them on the same build.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import callgrind
from bench.kernel.counted import FEW_TIMES, SETS, TWICE
from bench.kernel.measures import measures
from bench.tables import markdown_table
from fastnet import _execute

FIGURES = Path(__file__).parent / "results" / "instructions.json"
MOST_RISE = 0.05
MET, ROSE, NO_VALGRIND, NOTHING_TO_COMPARE = 0, 1, 2, 3

Figures = dict[str, dict[str, float]]


def counted() -> Figures:
    """Return the current figures, by name: all instructions, and the kernel's own."""
    command = [sys.executable, "-m", "bench.kernel.counted"]
    # Per call: a run, the part between two runs, a run twice as long, and a part again.
    parts = iter(callgrind.count(command, within="/fastnet/_"))

    def of_a_call() -> callgrind.Count:
        _, few, _, twice = (next(parts) for _ in range(4))
        return (twice - few) / (TWICE - FEW_TIMES)

    every: dict[str, list[callgrind.Count]] = {}
    for measure in measures() * SETS:
        figure = of_a_call()
        if measure.less is not None:
            figure = (figure - of_a_call()) / measure.times
        every.setdefault(measure.name, []).append(figure)
    return {
        name: {
            "all": round(min(figure.total for figure in figures), 2),
            "own": round(min(figure.own for figure in figures), 2),
        }
        for name, figures in every.items()
    }


def tag() -> str:
    """Return the key of recorded figures: the interpreter's minor version and the machine."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.python_implementation()} {version}, {platform.machine()}"


def built_with() -> dict[str, str]:
    """Return the interpreter's build, and the compilers of the kernel."""
    module = Path(_execute.__file__).read_bytes()
    compiler = re.search(rb"(?:GCC: \([^)]*\) |clang version )[\d.]+", module)
    cython = re.search(rb"_cython_(\d+_\d+_\d+)", module)
    return {
        "python": sys.version,
        "compiler": compiler.group().decode() if compiler else "unknown",
        "cython": cython.group(1).decode().replace("_", ".") if cython else "unknown",
    }


def rises(now: Figures, committed: Figures, same_build: bool) -> Iterator[str]:
    """Yield a line for each figure that has risen too much; on another build, of `own` only."""
    for name in now.keys() & committed.keys():
        for kind in ("own", "all") if same_build else ("own",):
            was, is_now = committed[name][kind], now[name][kind]
            if is_now > was * (1 + MOST_RISE):
                whose = "the kernel's own" if kind == "own" else "all"
                more = f"{is_now / was - 1:+.1%}" if was else "from zero"
                yield f"{name}, {whose}: {was:g} -> {is_now:g} instructions, {more}"


def table(now: Figures, committed: Figures) -> str:
    """Return the figures beside the committed ones."""
    rows = []
    for measure in measures():
        both = now[measure.name], committed.get(measure.name, {})
        cells = [f"{one[kind]:,.1f}" if one else "-" for one in both for kind in ("all", "own")]
        rows.append([measure.name, measure.title, *cells])
    columns = ["name", "work", "all", "kernel's own", "all, committed", "kernel's own, committed"]
    return markdown_table(columns, rows)


def main(arguments: list[str] | None = None) -> int:
    """Count, print a table, and compare or record.

    Returns:
        The exit status: 1 if a figure has risen, 2 without valgrind, 3 if there is no committed
        figure for this interpreter.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail if a figure has risen by 5 %%")
    what.add_argument("--record", action="store_true", help="count twice, and write the figures")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the committed figures")
    options = parser.parse_args(arguments)
    saved = json.loads(options.figures.read_text()) if options.figures.exists() else {}
    recorded: dict[str, Any] | None = saved.get(tag())
    if options.check and recorded is None:
        print(f"{options.figures} has no figures for {tag()}: record them", file=sys.stderr)
        return NOTHING_TO_COMPARE
    try:
        now = counted()
        if options.record and (again := counted()) != now:
            changed = sorted(name for name in now if now[name] != again[name])
            print(f"Two counts differ: {', '.join(changed)}", file=sys.stderr)
            return ROSE
    except callgrind.NoValgrind as error:
        print(f"Nothing was counted: {error}", file=sys.stderr)
        return NO_VALGRIND
    print(table(now, recorded["figures"] if recorded else {}))
    if options.record:
        saved[tag()] = {**built_with(), "figures": now}
        options.figures.parent.mkdir(parents=True, exist_ok=True)
        options.figures.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    if options.check and recorded is not None:
        return _compare(now, recorded)
    return MET


def _compare(now: Figures, recorded: dict[str, Any]) -> int:
    """Print the figures that have risen, and return the exit status."""
    build = built_with()
    committed = recorded["figures"]
    same_build = build["python"] == recorded["python"]
    if not same_build:
        print("Another build of Python: only the kernel's own instructions are compared.")
    found = sorted(rises(now, committed, same_build))
    for line in found:
        print(f"ROSE: {line}", file=sys.stderr)
    others = [part for part in ("compiler", "cython") if build[part] != recorded[part]]
    for part in others if found else ():
        print(f"Recorded with {recorded[part]}, now {build[part]}.", file=sys.stderr)
    if found:
        return ROSE
    if new := sorted(now.keys() - committed.keys()):
        print(f"No committed figures: {', '.join(new)}. Record them.", file=sys.stderr)
        return NOTHING_TO_COMPARE
    print(f"No figure has risen by {MOST_RISE:.0%}.")
    return MET


if __name__ == "__main__":
    sys.exit(main())
