"""`fastnet explain`: what a step would run, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastnet.cli.arguments import NETWORK, add_opening, one_of
from fastnet.cli.files import new_file
from fastnet.cli.show import show
from fastnet.cli.usage import UsageError

SUMMARY = "tell what a step would run and why: ops, keys, what nobody needs"
DESCRIPTION = f"""\
Tell what a network would run, and why, without running it: the ops in force in their order, who
writes and who reads each key, what is taken from the batch and what comes back, and which ops
nobody needs. Ends with status 1 if such a network could not be opened.

{NETWORK}"""
EXAMPLES = """\
examples:
  fastnet explain networks.py:make_network
  fastnet explain networks.py:make_network --mode eval --epoch 3 --outputs loss,accuracy
  fastnet explain networks.py:make_network --output graph.svg
  fastnet explain networks.py:make_network --format mermaid
"""

_WRITERS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "json": lambda explanation: json.dumps(explanation.to_dict(), indent=2),
    "mermaid": lambda explanation: str(explanation.to_mermaid()),
    "dot": lambda explanation: str(explanation.to_dot()),
    "svg": lambda explanation: str(explanation._repr_svg_()),
}
_SUFFIXES = {
    ".txt": "text",
    ".json": "json",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_opening(command)
    command.add_argument(
        "--format",
        type=one_of("format", _WRITERS),
        metavar="FORMAT",
        help=f"{', '.join(_WRITERS)} (default: what the suffix of --output says, or text)",
    )
    command.add_argument(
        "--output", type=new_file, metavar="FILE", help="write it there instead of printing it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Explain, and print or write it."""
    write = _WRITERS[arguments.format or _format_of(arguments.output)]

    from fastnet.cli.loading import load_network

    explanation = load_network(arguments.network).explain(
        mode=arguments.mode,
        epoch=arguments.epoch,
        ds_id=arguments.ds_id,
        desired_output_keys=arguments.outputs,
    )
    if arguments.output is not None:
        text = write(explanation).rstrip("\n") + "\n"
        arguments.output.write_text(text, encoding="utf-8")
    elif write is str:
        show(explanation)
    else:
        print(write(explanation))
    return 0 if explanation.error is None else 1


def _format_of(path: Path | None) -> str:
    if path is None:
        return "text"
    if path.suffix not in _SUFFIXES:
        raise UsageError(
            f"--output: the suffix of {str(path)!r} names no format. Use one of "
            f"{', '.join(_SUFFIXES)}, or name the --format."
        )
    return _SUFFIXES[path.suffix]
