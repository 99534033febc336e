"""`fastnet bench`: run the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fastnet
from fastnet.cli.arguments import UsageError

SUMMARY = "measure what a step costs beside hand-written loops and other libraries"
DESCRIPTION = """\
Run the benchmarks of a checkout of fastnet; its wheel has none. Run this inside of the checkout.

  report           every workload beside its peers: tables of ratios, JSON, Markdown, plots
  suites           the same programs, and the kernel alone, under pytest-benchmark
  instructions     processor instructions of a dispatched op (needs valgrind)
  op-instructions  processor instructions that an op adds to a step (needs valgrind)

Without any of these it runs the suites and the report, which goes to build/bench/. Arguments after
the name are passed on."""
EXAMPLES = """\
examples:
  fastnet bench report --quick --workloads mlp_train mlp_infer
  fastnet bench report --workloads growth
  fastnet bench report --help
  fastnet bench suites -k mlp
  fastnet bench op-instructions dice
  fastnet bench
"""

_PARTS = ("report", "suites", "instructions", "op-instructions")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "part",
        nargs="?",
        choices=_PARTS,
        help="the part to run (default: suites, then report)",
    )
    command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the part")


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmarks, and return the first exit status that is not 0."""
    root = _checkout()
    if arguments.part is not None:
        return _start(arguments.part, arguments.args, root)
    save = ["--save", str(root / "build/bench")]
    return _start("suites", [], root) or _start("report", save, root)


def _start(part: str, args: Sequence[str], root: Path) -> int:
    words = ["-m", f"bench.{part.replace('-', '_')}"]
    if part == "suites":
        words = ["-m", "pytest", str(root / "bench"), "--benchmark-only"]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**_ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.call([sys.executable, *words, *args], env=variables)


def _checkout() -> Path:
    """Return the checkout around the current folder, or the one fastnet is imported from."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(fastnet.__file__).resolve().parents[2]):
        if (folder / "bench/report.py").is_file() and (folder / "src/fastnet").is_dir():
            return folder
    raise UsageError(
        f"the benchmarks are in fastnet's checkout, and {here} is not in one. Clone the "
        "repository, install it with `pip install -e '.[bench]'`, and run this from there."
    )
