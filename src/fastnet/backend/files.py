"""Files of weights: written whole, and looked for where they are said to be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress

from fastnet.errors import add_note, shown

__all__ = ["require_weights_file", "write_whole"]


def write_whole(path: str, write: Callable[[str], object]) -> None:
    """Write a file so that, whatever happens, it is there whole, or as it was before.

    It is written in a folder of its own, whose name begins with ".saving-", and is put into its
    place once it is on the disk. A process that is killed meanwhile leaves that folder behind.

    Args:
        path: Where it is to be. Folders that lack are made.
        write: Writes it to the path that it is given, which has the same name.
    """
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder or ".", exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder or ".", prefix=".saving-") as inside:
            made = os.path.join(inside, name)
            write(made)
            _put_on_disk(made)
            os.replace(made, path)
        with suppress(OSError):  # there are file systems that cannot
            _put_on_disk(folder or ".")
    except Exception as error:
        add_note(error, f"Raised while the file '{path}' was written.")
        raise


def _put_on_disk(path: str) -> None:
    """Wait until a file, or what is in a folder, has left the memory of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_weights_file(path: str | os.PathLike[str]) -> str:
    """Check that there is a file of weights.

    Args:
        path: Its path.

    Returns:
        The path, as a string.

    Raises:
        ValueError: If there is no such file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A weights path is a string, not {shown(path)} of type {type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise ValueError(f"There is no weights file '{name}'. Check the path.")
    return name
