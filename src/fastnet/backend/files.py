"""Write files atomically, and find weights files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

from fastnet.errors import add_note, nearest_name, shorten

__all__ = ["require_weights_file", "write_atomically"]

_PREFIX = ".saving-"
_ABANDONED_AFTER = 24 * 3600.0  # No save takes longer.


def write_atomically(path: str, write: Callable[[str], object]) -> None:
    """Write a file so that the old file or the new one is there, whole, whatever happens.

    The file is written into a temporary folder beside it, flushed to disk, and renamed. A process
    that is killed meanwhile leaves that folder behind; a save on a later day removes it. `write` is
    called with the temporary path, which has the same name.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    try:
        os.makedirs(folder, exist_ok=True)
        _remove_abandoned(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_PREFIX) as temporary:
            made = os.path.join(temporary, name)
            write(made)
            _flush(made)
            os.replace(made, path)
        with suppress(OSError):  # Some file systems cannot flush a folder.
            _flush(folder)
    except Exception as error:
        add_note(error, f"Raised while the file '{path}' was written.")
        raise


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: str) -> None:
    """Remove temporary folders left behind by processes that were killed during a save."""
    with suppress(OSError):  # A folder may be writable and not readable.
        for name in os.listdir(parent):
            if not name.startswith(_PREFIX):
                continue
            folder = os.path.join(parent, name)
            with suppress(OSError):  # Another process may be removing it.
                if time.time() - os.path.getmtime(folder) > _ABANDONED_AFTER:
                    shutil.rmtree(folder)


def require_weights_file(path: str | os.PathLike[str]) -> str:
    """Return the path of a weights file as a string; raise a ValueError if it does not exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A weights path is a string, not {shorten(path)} of type {type(path).__name__}."
        )
    name = os.fspath(path)
    if os.path.isfile(name):
        return name
    if os.path.isdir(name):
        raise ValueError(f"The weights path '{name}' is a folder. Give the path of a file in it.")
    folder, base = os.path.split(name)
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    longer = [one for one in names if one.startswith(f"{base}.")]
    near = longer[0] if longer else nearest_name(base, names)
    advice = f"Did you mean {os.path.join(folder, near)!r}?" if near else "Check the path."
    raise ValueError(f"There is no weights file '{name}'. {advice}")
