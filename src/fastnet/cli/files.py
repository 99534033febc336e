"""Files that a command is asked to write."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["new_file"]


def new_file(word: str) -> Path:
    """Read the name of a file to write: the type of an argument.

    That its folder is missing is said at once, not when the work is done.
    """
    path = Path(word)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{word!r} cannot be written: there is no folder {str(path.parent)!r}. Make it first."
        )
    return path
