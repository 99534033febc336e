"""`fastnet explain`: show what a step would run, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
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


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_context(command)
    command.add_argument(
        "--format",
        choices=tuple(_FORMATS),
        default="text",
        help="the format to print (default: text)",
    )
    command.add_argument(
        "--output",
        type=new_file,
        metavar="FILE",
        help="draw the graph with Graphviz instead (.svg, .png or .pdf)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Explain the network, and print or draw the explanation."""
    from fastnet.cli.loading import load_network

    explanation = load_network(arguments.network).explain(
        mode=arguments.mode,
        epoch=arguments.epoch,
        ds_id=arguments.ds_id,
        desired_output_keys=arguments.outputs,
    )
    if arguments.output is None:
        print(_FORMATS[arguments.format](explanation).rstrip("\n"))
    else:
        try:
            explanation.plot(arguments.output)
        except RuntimeError as error:
            raise UsageError(f"--output: {error}") from None
    return 0 if explanation.error is None else 1
