"""The command line: `fastnet …`, and `python -m fastnet …`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import fastnet
from fastnet.cli import demo, explain, profile, run_fastestimator
from fastnet.cli.arguments import UsageError

__all__ = ["main"]

# Each declares its arguments, and imports what it needs only when it runs.
_COMMANDS = {
    "profile": profile,
    "explain": explain,
    "demo": demo,
    "run-fastestimator": run_fastestimator,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command and its arguments. None for those of the process.

    Returns:
        The exit status: 2 if the arguments cannot be used.

    Raises:
        SystemExit: If the arguments cannot be parsed, or ask for help or the version.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(f"fastnet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # A reader such as `head` has closed the pipe. Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


class _Version(argparse.Action):
    """Prints the version, which is slow to read and so is read only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"fastnet {fastnet.__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastnet",
        description="Graphs of ops over dict batches, at the speed of a hand-written loop.",
        epilog="fastnet COMMAND --help describes a command, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
