"""`fastnet run-fastestimator`: a FastEstimator program, run on fastnet."""

from __future__ import annotations

import argparse

from fastnet.cli.usage import UsageError

SUMMARY = "run a FastEstimator program with fastnet in the place of its Network"
DESCRIPTION = """\
Run a FastEstimator program, unchanged, with fastnet in the place of its Network and of what a
Network runs."""
EXAMPLES = """\
examples:
  fastnet run-fastestimator train.py --epochs 3
  fastnet run-fastestimator --reseed train.py
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.add_argument(
        "--reseed",
        action="store_true",
        help="in TensorFlow, draw the same random numbers in each opening, as FastEstimator does",
    )
    # one list for all: argparse takes a "--" away from what follows an argument of its own
    command.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="script",
        help="the program, a file or a folder with a __main__.py, and its own arguments",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program; give its exit status."""
    from fastnet.integrations.fastestimator import UnknownVersionError, run_script

    try:
        return run_script(arguments.program[0], arguments.program[1:], arguments.reseed)
    except (FileNotFoundError, ModuleNotFoundError, UnknownVersionError) as error:
        raise UsageError(str(error)) from error
