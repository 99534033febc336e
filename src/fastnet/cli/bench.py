"""`fastnet bench`: the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fastnet
from fastnet.cli.arguments import one_of
from fastnet.cli.usage import UsageError

SUMMARY = "measure what a step costs beside loops written by hand and other libraries"
DESCRIPTION = """\
Run the benchmarks, each in a fresh process and on one thread, with whatever of the other libraries
is installed. They are in the checkout of fastnet, not in its wheel: run this from inside of one.

  report           every workload beside its peers, and how costs grow with ops, keys and more:
                   tables of ratios, JSON, Markdown, pictures
  suites           the same programs, and the kernel alone, under pytest-benchmark
  instructions     processor instructions of a dispatched op, which a busy machine does not change
                   (needs valgrind)
  op-instructions  those that an op of the library adds to a step (needs valgrind)

Without any of these it runs the suites, and then the report, which goes to build/bench/. What
follows the name is passed on."""
EXAMPLES = """\
examples:
  fastnet bench report --quick --workloads mlp_train mlp_infer
  fastnet bench report --workloads growth
  fastnet bench report --help
  fastnet bench suites -k mlp
  fastnet bench op-instructions torch DiceLoss
  fastnet bench
"""

_PARTS = ("report", "suites", "instructions", "op-instructions")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.add_argument(
        "part",
        nargs="?",
        type=one_of("part of the benchmarks", _PARTS),
        metavar="PART",
        help=f"{', '.join(_PARTS)} (default: suites, then report)",
    )
    command.add_argument("args", nargs=argparse.REMAINDER, help="the part's own arguments")


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for; give the first exit status that is not 0."""
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
    """Find the checkout: around the current folder, or the one that fastnet is imported from."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(fastnet.__file__).resolve().parents[2]):
        if (folder / "bench/report.py").is_file() and (folder / "src/fastnet").is_dir():
            return folder
    raise UsageError(
        f"the benchmarks are in fastnet's checkout, and {here} is not in one. Clone the "
        "repository, install it with `pip install -e '.[bench]'`, and run this from there."
    )
