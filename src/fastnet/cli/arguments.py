"""Arguments that several commands have, and how they are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from fastnet.errors import nearest_name

__all__ = ["NETWORK", "add_opening", "at_least", "one_of"]

NETWORK = """\
MODULE:NETWORK says where the network is. MODULE is the name of a module (my.networks), which is
looked for in the current folder too, or a file (networks.py). NETWORK is a name in it: that of a
Network, or of a function without arguments that makes one."""

_MODES = ("train", "eval", "test", "infer")


def add_opening(command: argparse.ArgumentParser) -> None:
    """Add the arguments that say which network is opened, and how."""
    command.add_argument("network", metavar="MODULE:NETWORK", help="where the network is")
    command.add_argument(
        "--mode",
        type=one_of("mode", _MODES),
        default="train",
        help="train, eval, test or infer (default: train)",
    )
    command.add_argument(
        "--epoch",
        type=at_least(1),
        default=1,
        metavar="N",
        help="the epoch to open; schedulers go by it (default: 1)",
    )
    command.add_argument(
        "--ds-id", default="", metavar="ID", help="the id of the dataset (default: it has none)"
    )
    command.add_argument(
        "--outputs",
        type=_keys,
        metavar="KEY,KEY",
        help="the keys that are wanted back (default: all that ops write)",
    )


def at_least(least: int) -> Callable[[str], int]:
    """Make the type of an argument that is a whole number, and not too small.

    >>> at_least(1)("12")
    12
    """

    def read(word: str) -> int:
        try:
            number = int(word)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from {least} up.")
        return number

    return read


def one_of(what: str, names: Iterable[str]) -> Callable[[str], str]:
    """Make the type of an argument that is one of a few names.

    >>> one_of("mode", ["train", "eval"])("eval")
    'eval'
    """
    known = list(names)

    def read(word: str) -> str:
        if word in known:
            return word
        near = nearest_name(word, known)
        meant = "" if near is None else f" Did you mean {near!r}?"
        raise argparse.ArgumentTypeError(
            f"{word!r} is no {what}.{meant} It is one of: {', '.join(known)}."
        )

    return read


def _keys(words: str) -> set[str]:
    return {word.strip() for word in words.split(",") if word.strip()}
