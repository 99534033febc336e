"""`fastnet explain`: show what a step would run, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastnet.cli.arguments import NETWORK, UsageError, add_context, new_file

SUMMARY = "show what a step would run and why: ops, keys, and what the result does not need"
DESCRIPTION = f"""\
Show what a step of a network would run, and why, without running it: the active ops in order, the
writers and readers of each key, what is taken from the batch and returned, and likely mistakes.
The exit status is 1 if the network cannot be entered.

{NETWORK}"""
EXAMPLES = """\
examples:
  fastnet explain networks.py:make_network
  fastnet explain networks.py:make_network --mode eval --epoch 3 --outputs loss,accuracy
  fastnet explain networks.py:make_network --output graph.svg
  fastnet explain networks.py:make_network --format mermaid
"""

_FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "json": lambda explanation: json.dumps(explanation.to_dict(), indent=2),
    "mermaid": lambda explanation: str(explanation.to_mermaid()),
    "dot": lambda explanation: str(explanation.to_dot()),
}
_SUFFIXES = {
    ".txt": "text",
    ".json": "json",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
}
_PICTURES = (".svg", ".png", ".pdf")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_context(command)
    command.add_argument(
        "--format",
        choices=tuple(_FORMATS),
        help="(default: by the suffix of --output, or text)",
    )
    command.add_argument(
        "--output",
        type=new_file,
        metavar="FILE",
        help="write to a file; .svg, .png and .pdf are drawn by Graphviz",
    )


def run(arguments: argparse.Namespace) -> int:
    """Explain the network, and print or write the explanation."""
    path: Path | None = arguments.output
    is_picture = path is not None and path.suffix in _PICTURES and arguments.format is None
    write = str if is_picture else _FORMATS[arguments.format or _format_of(path)]

    from fastnet.cli.loading import load_network

    explanation = load_network(arguments.network).explain(
        mode=arguments.mode,
        epoch=arguments.epoch,
        ds_id=arguments.ds_id,
        desired_output_keys=arguments.outputs,
    )
    if path is None:
        print(write(explanation))
    elif is_picture:
        try:
            explanation.plot(path)
        except RuntimeError as error:
            raise UsageError(f"--output: {error}") from None
    else:
        path.write_text(write(explanation).rstrip("\n") + "\n", encoding="utf-8")
    return 0 if explanation.error is None else 1


def _format_of(path: Path | None) -> str:
    if path is None:
        return "text"
    if path.suffix not in _SUFFIXES:
        raise UsageError(
            f"--output: the suffix of {str(path)!r} is not that of a format. Use one of "
            f"{', '.join((*_SUFFIXES, *_PICTURES))}, or set --format."
        )
    return _SUFFIXES[path.suffix]
