"""The command line: `fastnet …`, and `python -m fastnet …`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

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
    """Run a command with its arguments, or those of the process, and return the exit status."""
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastnet",
        description="Explain and profile networks of ops over dict batches.",
        epilog="fastnet COMMAND --help describes a command, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastnet {fastnet.__version__}")
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
