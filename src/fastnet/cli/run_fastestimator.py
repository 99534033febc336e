"""`fastnet run-fastestimator`: run a FastEstimator program on fastnet."""

from __future__ import annotations

import argparse

from fastnet.cli.arguments import UsageError

SUMMARY = "run a FastEstimator program with fastnet's Network"
DESCRIPTION = """\
Run an unchanged FastEstimator program with fastnet's Network and ops instead of FastEstimator's."""
EXAMPLES = """\
examples:
  fastnet run-fastestimator train.py --epochs 3
  fastnet run-fastestimator --compile train.py
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("--compile", action="store_true", help="compile the steps of its networks")
    # A single list, as argparse removes a "--" that follows an argument of its own.
    command.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="script",
        help="the program (a file, or a folder with a __main__.py) and its arguments",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program."""
    from fastnet.integrations.fastestimator import UnknownVersionError, run_script

    try:
        path, *args = arguments.program
        return run_script(path, args, arguments.compile)
    except (FileNotFoundError, ModuleNotFoundError, UnknownVersionError) as error:
        raise UsageError(str(error)) from error
