"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

NETWORK = """\
MODULE:NETWORK names the network. MODULE is the name of a module (my.networks), which is also
searched in the current folder, or a file (networks.py). NETWORK is a Network in it, or a function
without arguments that returns one."""


class UsageError(Exception):
    """An argument that cannot be used; its text is printed without a traceback."""


def add_context(command: argparse.ArgumentParser) -> None:
    """Add the arguments for a network and the context to enter."""
    command.add_argument("network", metavar="MODULE:NETWORK", help="the network")
    command.add_argument(
        "--mode",
        choices=("train", "eval", "test", "infer"),
        default="train",
        help="the mode (default: train)",
    )
    command.add_argument(
        "--epoch", type=integer_from(1), default=1, metavar="N", help="the epoch (default: 1)"
    )
    command.add_argument("--ds-id", default="", metavar="ID", help="the dataset id (default: none)")
    command.add_argument(
        "--outputs",
        type=lambda text: {key.strip() for key in text.split(",") if key.strip()},
        metavar="KEY,KEY",
        help="the desired output keys (default: all that ops write)",
    )


def integer_from(minimum: int) -> Callable[[str], int]:
    """Return an argument type for integers of at least `minimum`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {minimum}.")
        return int(text)

    return parse


def new_file(text: str) -> Path:
    """Return the path of a file to write; an unusable one is an error before any work is done."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: there is no folder {str(path.parent)!r}."
        )
    return path
