"""Check paths, find files, and write them atomically."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastnet.errors import add_note, nearest_name, shorten

_PREFIX = ".saving-"
_ABANDONED_AFTER = 24 * 3600.0  # No save takes longer.


def write_atomically(path: str, write: Callable[[str], object]) -> None:
    """Write a file in a temporary folder beside it, flush it to disk, and rename it.

    As in a plain write, a symbolic link stays a link, and an existing file keeps its mode.
    """
    name, path = os.path.basename(path), os.path.realpath(path)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        _remove_abandoned(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_PREFIX) as temporary:
            temporary_path = os.path.join(temporary, name)
            write(temporary_path)
            _flush(temporary_path)
            if os.path.exists(path):
                shutil.copymode(path, temporary_path)
            os.replace(temporary_path, path)
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
    """Remove the temporary folders of processes that were killed."""
    for folder in glob.glob(os.path.join(glob.escape(parent), f"{_PREFIX}*")):
        with suppress(OSError):  # Another process may be removing it.
            if time.time() - os.path.getmtime(folder) > _ABANDONED_AFTER:
                shutil.rmtree(folder)


@contextmanager
def reading(source: str, problem: str, advice: str = "") -> Iterator[None]:
    """Turn the many types of errors that a damaged file raises into a ValueError with a reason."""
    try:
        yield
    except Exception as error:
        # Pass on errors of the system; invalid offsets in a damaged file raise EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = " ".join(str(error).split()) if isinstance(error, ValueError) else shorten(error)
        raise ValueError(f"{source} {problem}: {reason[:400]}. {advice}".rstrip()) from error


def require_content(path: str) -> None:
    """Raise a ValueError for an empty file; the reader of the file validates the rest."""
    if not _first_bytes(path):
        raise ValueError("it is empty")


def refuse_checkpoint(path: str, kind: str) -> None:
    """Raise a ValueError for a checkpoint in place of weights."""
    if _first_bytes(path)[8:] == b"{":
        raise ValueError(f"The {kind} '{path}' is a checkpoint, which load_checkpoint reads.")


def refuse_weights(path: str) -> None:
    """Raise a ValueError for weights in place of a checkpoint."""
    if _first_bytes(path).startswith((b"PK", b"\x89HDF")):
        raise ValueError(
            f"The checkpoint '{path}' is a file of torch or Keras, whose weights load_model reads."
        )


def _first_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(9)


def check_path(path: str | os.PathLike[str], kind: str) -> str:
    """Return a path as a string; raise a ValueError for anything else."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise ValueError(
            f"The path of a {kind} must be a string, not {shorten(path)} of type "
            f"{type(path).__name__}."
        )
    return name


def check_file_path(path: str | os.PathLike[str], kind: str) -> str:
    """Return the path of a file as a string; raise a ValueError if it is that of a folder."""
    name = check_path(path, kind)
    if not os.path.basename(name) or os.path.isdir(name):
        raise ValueError(
            f"The path of a {kind} must end with the name of a file, but {name!r} is a folder or "
            "empty."
        )
    return name


def find_file(
    path: str | os.PathLike[str], kind: str, missing: type[Exception] = ValueError
) -> str:
    """Return the path of a file as a string; raise `missing` if it does not exist."""
    name = check_file_path(path, kind)
    if os.path.isfile(name):
        return name
    folder, base = os.path.split(name)
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    with_suffix = [entry for entry in names if entry.startswith(f"{base}.")]
    suggestion = with_suffix[0] if with_suffix else nearest_name(base, names)
    advice = "Check the path."
    if suggestion:
        advice = f"Did you mean {os.path.join(folder, suggestion)!r}?"
    raise missing(f"There is no {kind} {name!r}. {advice}")


def require_optimizer_file(path: str) -> None:
    """Raise an AssertionError if there is no file of optimizers beside the weights."""
    if not os.path.isfile(path):
        raise AssertionError(
            f"There is no optimizer file '{path}' beside the weights. Leave load_optimizer out, or "
            "save the model with save_optimizer=True."
        )
