"""Weights of Keras models, from files."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from typing import IO, Any

from fastnet.backend.files import find_file, reading
from fastnet.backend.tf._keras_internals import INSIDE, is_beside

__all__ = ["load_weights", "save_weights"]

_ENDINGS = (".h5", ".hdf5", ".keras")
# The attribute of a file that holds the checksum of its arrays, which HDF5 does not have itself.
_CHECKSUM = "fastnet_crc32"


def save_weights(model: Any, path: str) -> None:
    """Write a model's weights to a file of Keras, with a checksum."""
    import h5py

    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        file.attrs[_CHECKSUM] = _checksum(file)


def load_weights(model: Any, path: str | os.PathLike[str]) -> None:
    """Fill a model from a file of Keras; raise a ValueError if it does not fit.

    Keras reads only the arrays of a file, also of a whole model, and executes nothing.
    """
    name = find_file(path, "weights file")
    if not name.endswith(_ENDINGS):
        raise ValueError(
            f"The weights file '{name}' ends with none of {list(_ENDINGS)}. Save it again with "
            "model.save_weights('name.weights.h5')."
        )
    if not model.built:
        raise ValueError(
            f"The weights file '{name}' cannot be loaded: {type(model).__name__} has no variables "
            "before it knows the shape of its input. Give it an Input, or call its build(shape), "
            "in model_fn."
        )
    problem = f"is damaged, or of another model than {type(model).__name__}"
    with reading(f"The weights file '{name}'", problem):
        _compare_checksum(name)
        _require_known_arrays(model, name)
        model.load_weights(name)


def _compare_checksum(path: str) -> None:
    """Raise a ValueError if the arrays of a file are not those that were saved."""
    import h5py

    if path.endswith(".keras"):
        return  # Zip files have checksums.
    with h5py.File(path, "r") as file:
        expected = file.attrs.get(_CHECKSUM)
        if expected is not None and expected != _checksum(file):
            raise ValueError("the checksum of its arrays differs from the saved one")


def _checksum(file: Any) -> int:
    """Return the CRC-32 of the names, dtypes, shapes and values of all arrays of an open file."""
    crc = 0
    for name, array in _arrays_in(file).items():
        if not array.dtype.hasobject:
            crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
            crc = zlib.crc32(array[()].tobytes(), crc)
    return crc


def _require_known_arrays(model: Any, path: str) -> None:
    """Raise an error for arrays that the model does not have, which Keras itself would ignore."""
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive, archive.open(INSIDE) as file:
            names = _names_in(file)
    elif path.endswith(".weights.h5"):
        names = _names_in(path)
    else:
        return  # Keras counts the layers in files of this older layout.
    names = [name for name in names if not is_beside(name)]
    if len(names) <= len(model.weights):
        return
    # Layers may save more than their weights, so compare with a file of this model.
    with tempfile.TemporaryDirectory() as folder:
        own_path = os.path.join(folder, INSIDE)
        model.save_weights(own_path)
        unknown = sorted(set(names) - set(_names_in(own_path)))
    if unknown:
        raise ValueError(f"it has {unknown[:4]}, which the model does not have")


def _names_in(path: str | IO[bytes]) -> list[str]:
    """List the paths of the arrays in a file of HDF5."""
    import h5py

    with h5py.File(path, "r") as file:
        return list(_arrays_in(file))


def _arrays_in(file: Any) -> dict[str, Any]:
    """Return the arrays of an open file of HDF5 by path."""
    import h5py

    names: list[str] = []
    file.visit(names.append)
    return {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
