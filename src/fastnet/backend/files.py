"""Files of weights: written whole, and looked for where they are said to be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from fastnet.errors import add_note

__all__ = ["require_weights_file", "write_whole"]


def write_whole(path: str, write: Callable[[str], object]) -> None:
    """Write a file so that, whatever happens, it is there whole, or as it was before.

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
            os.replace(made, path)
    except Exception as error:
        add_note(error, f"Raised while the file '{path}' was written.")
        raise


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
        raise ValueError(f"A weights path is a string, not {path!r} of type {type(path).__name__}.")
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise ValueError(f"There is no weights file '{name}'. Check the path.")
    return name
