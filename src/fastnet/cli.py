"""The command line: `fastnet …`, and `python -m fastnet …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command and its arguments. None for those of the process.

    Returns:
        The status to exit with.
    """
    parser = argparse.ArgumentParser(
        prog="fastnet", description="Graphs of ops over dict batches, at the speed of a bare loop."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run_fastestimator(commands)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


def _add_run_fastestimator(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "run-fastestimator",
        help="run a FastEstimator program with fastnet in the place of its Network",
        description="Run a FastEstimator program, unchanged, with fastnet in the place of its "
        "Network and of what a Network runs.",
    )
    command.add_argument("script", help="the program: a file, or a folder with a __main__.py")
    command.add_argument("args", nargs=argparse.REMAINDER, help="the program's own arguments")
    command.set_defaults(run=_run_fastestimator)


def _run_fastestimator(arguments: argparse.Namespace) -> int:
    # only now, so that no other command needs what it needs
    from fastnet.integrations.fastestimator import UnknownVersionError, run_script

    try:
        return run_script(arguments.script, arguments.args)
    except (FileNotFoundError, ModuleNotFoundError, UnknownVersionError) as error:
        print(f"fastnet: {error}", file=sys.stderr)
        return 2
