"""Write files atomically, and find weights files."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastnet.errors import add_note, nearest_name, shorten

if sys.platform != "win32":
    import fcntl

__all__ = ["require_weights_file", "write_atomically"]

_PREFIX = ".saving-"
_ENDINGS = (".pt", ".h5", ".keras")


def write_atomically(path: str, write: Callable[[str], object]) -> None:
    """Write a file so that the old file or the new one is there, whole, whatever happens.

    The file is written into a temporary folder beside it, flushed to disk, and renamed. A process
    that is killed meanwhile leaves that folder behind; a later save from the same machine removes
    it. `write` is called with the temporary path, which has the same name.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    try:
        os.makedirs(folder, exist_ok=True)
        with _temporary_folder(folder) as temporary:
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


@contextmanager
def _temporary_folder(parent: str) -> Iterator[str]:
    """Make a folder, locked while this process lives, and remove it afterwards."""
    _remove_abandoned(parent)
    folder = tempfile.mkdtemp(dir=parent, prefix=_PREFIX)
    lock = _lock(folder)
    try:
        if lock is not None:
            # Only locked folders have this ending, so that nobody removes one that is still new.
            os.rename(folder, folder + _ending())
            folder += _ending()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: str) -> None:
    """Remove temporary folders of processes on this machine that were killed."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX) and name.endswith(_ending()):
            folder = os.path.join(parent, name)
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _ending() -> str:
    # A lock may be invisible to other machines that share the file system.
    return "" if sys.platform == "win32" else f"-{os.uname().nodename}"


def _lock(folder: str) -> int | None:
    """Lock a folder until the returned descriptor is closed; None where that is impossible."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def require_weights_file(path: str | os.PathLike[str]) -> str:
    """Return the path of a weights file as a string; raise a ValueError if it does not exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A weights path is a string, not {shorten(path)} of type {type(path).__name__}."
        )
    name = os.fspath(path)
    if os.path.isfile(name):
        return name
    what = ", but a folder of that name" if os.path.isdir(name) else ""
    meant = _weights_files_like(name)
    advice = f"Did you mean {' or '.join(map(repr, meant))}?" if meant else "Check the path."
    raise ValueError(f"There is no weights file '{name}'{what}. {advice}")


def _weights_files_like(name: str) -> list[str]:
    """List the weights files in a folder, or those with a name like that of a missing file."""
    is_folder = os.path.isdir(name)
    folder = name if is_folder else os.path.dirname(name) or "."
    try:
        found = [one for one in sorted(os.listdir(folder)) if one.endswith(_ENDINGS)]
    except OSError:
        return []
    found = [one for one in found if not os.path.splitext(one)[0].endswith("_opt")]
    if not is_folder:
        base = os.path.basename(name)
        longer = [one for one in found if one.startswith(f"{base}.")]
        near = nearest_name(base, found)
        found = longer or ([near] if near else [])
    return [os.path.join(folder, one) for one in found]
