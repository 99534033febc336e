"""What files of arrays say of their sizes, compared with what they have, before it is read."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

__all__ = ["arrays_in", "require_claims_of_npz", "require_claims_of_weights"]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def require_claims_of_npz(path: str) -> None:
    """Check that a file has all the numbers that it claims.

    Args:
        path: A file that `numpy.savez` has written.

    Raises:
        ValueError: If it has not.
        zipfile.BadZipFile: If it is no such file.
    """
    with zipfile.ZipFile(path) as archive:
        _check_entries(archive, os.path.getsize(path))
        for entry in archive.infolist():
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                if version not in _HEADERS:
                    raise ValueError(f"its '{entry.filename}' is of the unknown form {version}")
                shape, _, dtype = _HEADERS[version](file)
                claimed = math.prod(shape) * dtype.itemsize
                left = entry.file_size - file.tell()
                if not dtype.hasobject and (claimed != left or min(shape, default=0) < 0):
                    raise _too_much(entry.filename, claimed, left)


def require_claims_of_weights(path: str, inside: str, largest: int, names: int) -> None:
    """Check that a file has all the numbers that it claims, and refers to no other file.

    Args:
        path: A file that Keras has written: HDF5, or an archive with HDF5 in it.
        inside: What the latter is called in an archive.
        largest: How many numbers the largest array of the model has. What takes less room in the
            file than in memory, because it was compressed, may be as large.
        names: How many names there can be in a list. Several of them may be the same long one.

    Raises:
        Exception: If it has not, or cannot be read, which shows in a dozen ways.
    """
    import h5py

    size = os.path.getsize(path)
    if not path.endswith(".keras"):
        with h5py.File(path, "r") as opened:
            _check_h5(opened, size, largest, names)
        return
    with zipfile.ZipFile(path) as archive:
        _check_entries(archive, size)
        with archive.open(inside) as file, h5py.File(file, "r") as opened:
            _check_h5(opened, archive.getinfo(inside).file_size, largest, names)


def arrays_in(file: str | IO[bytes]) -> list[str]:
    """List the paths of the arrays in a file of HDF5.

    Args:
        file: The file, or its path.

    Returns:
        The paths, from the outermost group on.
    """
    import h5py

    with h5py.File(file, "r") as opened:
        return [name for name, item in _walk(opened) if isinstance(item, h5py.Dataset)]


def _check_entries(archive: zipfile.ZipFile, size: int) -> None:
    claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > size:
        # neither numpy nor Keras compresses, so that there is nothing to blow up
        raise _too_much("entries", claimed, size)


def _check_h5(file: Any, size: int, largest: int, names: int) -> None:
    import h5py

    for name, item in _walk(file):
        for key in item.attrs:
            told = item.attrs.get_id(key)
            _check_strings(f"{name}@{key}", told, names)
            _check_numbers(f"{name}@{key}", told, size, size, 0)
        if isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise ValueError(f"its '{name}' is in another file")
            _check_strings(name, item, 1)
            _check_numbers(name, item, item.id.get_storage_size(), size, largest)


def _check_strings(name: str, item: Any, most: int) -> None:
    count = math.prod(item.shape or ())
    if item.dtype.hasobject and count > most:
        raise ValueError(f"its '{name}' is {count} strings of any length")


def _check_numbers(name: str, item: Any, stored: int, size: int, largest: int) -> None:
    count = math.prod(item.shape or ())
    claimed = count * item.dtype.itemsize
    if claimed > min(stored, size) and count > largest:
        raise _too_much(name, claimed, min(stored, size))


def _walk(group: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """List what is in a group, and in the groups there."""
    import h5py

    seen = set() if seen is None else seen
    place = h5py.h5o.get_info(group.id).addr
    if place in seen:
        # rings have no end, and what forks often enough has none to wait for
        raise ValueError(f"its '{path}' is there twice")
    seen.add(place)
    yield path, group
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"its '{path}/{name}' leads to somewhere else")
        item, inner = group[name], f"{path}/{name}".lstrip("/")
        if not isinstance(item, h5py.Group):
            yield inner, item
        else:
            yield from _walk(item, inner, seen)


def _too_much(name: str, claimed: int, size: int) -> ValueError:
    return ValueError(f"its '{name}' claims {claimed} bytes, but has {size}")
