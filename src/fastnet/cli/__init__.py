"""The command line: `fastnet …`, and `python -m fastnet …`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import fastnet
from fastnet.cli import bench, demo, explain, profile, run_fastestimator
from fastnet.cli.usage import UsageError
from fastnet.errors import nearest_name

__all__ = ["main"]

# Each says what its arguments are, and imports what it needs to run only when it runs.
_COMMANDS = {
    "profile": profile,
    "explain": explain,
    "bench": bench,
    "demo": demo,
    "run-fastestimator": run_fastestimator,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command and its arguments. None for those of the process.

    Returns:
        The status to exit with: 2 if the arguments cannot be used.

    Raises:
        SystemExit: If they cannot be understood, or ask for help or the version.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    _check_command(parser, words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(arguments.parser, unknown)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(f"fastnet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fastnet: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # such as `| head` has closed it; what Python itself flushes at its end has to go elsewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


class _Version(argparse.Action):
    """Prints the version. It is read only then: that takes longer than all imports of this file."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"fastnet {fastnet.__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastnet",
        description="Graphs of ops over dict batches, at the speed of a bare loop.",
        epilog="fastnet COMMAND --help tells what a command does and takes, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version of fastnet and exit"
    )
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
        command.set_defaults(run=module.run, parser=command)
    return parser


def _check_command(parser: argparse.ArgumentParser, words: list[str]) -> None:
    if not words or words[0].startswith("-") or words[0] in _COMMANDS:
        return
    near = nearest_name(words[0], _COMMANDS)
    meant = "" if near is None else f" Did you mean {near!r}?"
    parser.error(
        f"there is no command {words[0]!r}.{meant} The commands are: {', '.join(_COMMANDS)}."
    )


def _refuse(command: argparse.ArgumentParser, unknown: list[str]) -> None:
    options = re.findall(r"--[\w-]+", command.format_usage())
    for word in unknown:
        name = word.partition("=")[0]
        near = nearest_name(name, options) if name.startswith("-") else None
        if near is not None:
            command.error(f"there is no option {name}. Did you mean {near}?")
    command.error(f"unexpected: {' '.join(unknown)}. {command.prog} --help tells what it takes.")
