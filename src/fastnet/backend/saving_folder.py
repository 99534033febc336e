"""Folders that files are written in before they are put into their places."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

if sys.platform != "win32":
    import fcntl

__all__ = ["saving_folder"]

_PREFIX = ".saving-"


@contextmanager
def saving_folder(parent: str) -> Iterator[str]:
    """Make a folder to write a file in, and remove it afterwards.

    Those that processes have left here which were killed are removed, too, on Linux and since the
    machine was last started. A folder is known to be left by the lock that its writer holds as long
    as it lives. It has the machine's start in its name only once it is locked, so that one of
    another machine, or one that is not locked yet, is never taken for such.

    Args:
        parent: Where to make it.

    Yields:
        Its path.
    """
    _remove_left(parent)
    folder, lock = tempfile.mkdtemp(dir=parent, prefix=_PREFIX), None
    try:
        folder, lock = _claim(folder)
        yield folder
    finally:
        # what cannot be removed now is removed by a later save
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _claim(folder: str) -> tuple[str, int | None]:
    """Lock a folder, and then let its name say so; leave it as it is where that cannot be done."""
    start = _machine_start()
    lock = None if start is None else _lock(folder)
    if lock is None:
        return folder, None
    parent, name = os.path.split(folder)
    claimed = os.path.join(parent, f"{_PREFIX}{start}-{name.removeprefix(_PREFIX)}")
    try:
        os.rename(folder, claimed)
    except OSError:
        os.close(lock)
        return folder, None
    return claimed, lock


def _remove_left(parent: str) -> None:
    start = _machine_start()
    if start is None:
        return
    with suppress(OSError):
        for name in os.listdir(parent):
            if not name.startswith(f"{_PREFIX}{start}-"):
                continue
            folder = os.path.join(parent, name)
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: str) -> int | None:
    """Lock a folder until what is returned is closed; None if another one has, or it cannot be."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


@cache
def _machine_start() -> str | None:
    """Return what is another one on each machine, and each time that it starts; None if unknown."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip().replace("-", "") or None
    except OSError:
        return None
