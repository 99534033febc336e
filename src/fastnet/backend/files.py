"""Files of weights: written whole, and looked for where they are said to be."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from fastnet.backend.saving_folder import saving_folder
from fastnet.errors import add_note, nearest_name, shorten

__all__ = ["no_weights_file", "require_weights_file", "write_whole"]

_ENDINGS = (".pt", ".h5", ".keras")


def write_whole(path: str, write: Callable[[str], object]) -> None:
    """Write a file so that, whatever happens, it is there whole, or as it was before.

    It is written in a folder of its own, whose name begins with ".saving-", and is put into its
    place once it is on the disk. A process that is killed meanwhile leaves that folder behind for a
    later save to the same place, which removes it where it can tell: see `saving_folder`.

    Args:
        path: Where it is to be. Folders that lack are made.
        write: Writes it to the path that it is given, which has the same name.
    """
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder or ".", exist_ok=True)
        with saving_folder(folder or ".") as inside:
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
            f"A weights path is a string, not {shorten(path)} of type {type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise no_weights_file(name, "Check the path.")
    return name


def no_weights_file(name: str, advice: str) -> ValueError:
    """Word the error of a file of weights that is not there.

    Args:
        name: Its path; that of a folder, or one without an ending, may stand for a file.
        advice: What to do if none can have been meant.

    Returns:
        The error, for the caller to raise.
    """
    is_folder = os.path.isdir(name)
    what = ", but a folder of that name" if is_folder else ""
    meant = _weights_in(name) if is_folder else _weights_like(name)
    if len(meant) == 1:
        advice = f"Did you mean '{meant[0]}'?"
    elif meant:
        advice = f"Did you mean one of {meant}?"
    return ValueError(f"There is no weights file '{name}'{what}. {advice}")


def _weights_in(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [
        os.path.join(folder, name)
        for name in names
        if name.endswith(_ENDINGS) and not os.path.splitext(name)[0].endswith("_opt")
    ]


def _weights_like(name: str) -> list[str]:
    found = _weights_in(os.path.dirname(name) or ".")
    base = os.path.basename(name)
    with_ending = [one for one in found if os.path.basename(one).startswith(f"{base}.")]
    near = nearest_name(base, map(os.path.basename, found))
    return with_ending or [one for one in found if near and os.path.basename(one) == near]
