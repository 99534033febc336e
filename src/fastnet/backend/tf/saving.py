"""Save Keras models and their optimizers to files, and load them."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from fastnet.backend.archive import Block, open_archive, write_archive
from fastnet.backend.files import (
    find_file,
    reading,
    refuse_checkpoint,
    require_content,
    require_optimizer_file,
    write_atomically,
)
from fastnet.backend.model_metadata import (
    get_metadata,
    optimizers_of,
    taken_names,
)
from fastnet.backend.tf import processes
from fastnet.backend.tf._keras_internals import INSIDE, is_keras3, is_saved_beside_layers
from fastnet.backend.tf.legacy_h5 import ORDER, load_legacy, write_order
from fastnet.backend.tf.models import no_variables
from fastnet.backend.tf.optimizers import load_optimizer_state, optimizer_state
from fastnet.backend.tf.preserve_state import PreservedState
from fastnet.backend.tree import block_to_array, decode, encode
from fastnet.backend.weights import current_optimizer_index, pair_optimizers
from fastnet.distributed import raise_on_all_ranks
from fastnet.types import Model

_KERAS3_ENDING = ".weights.h5"
_OPTIMIZERS_ENDING = "_opt.safetensors"
_ENDINGS = (".h5", ".hdf5", ".keras")
# The attribute of a file that holds the checksum of its arrays, which HDF5 does not have itself.
_CHECKSUM = "fastnet_crc32"


def save_model(model: Model, stem: str, save_optimizer: bool, save_architecture: bool) -> str:
    """Save the weights of a model, and the state of its optimizers and its layers beside them.

    All workers call this together, and the first one writes.
    """
    ending = _KERAS3_ENDING if is_keras3(model) else ".h5"
    with _on_one_worker(stem) as own_stem:
        if save_optimizer:  # First, since its state may be invalid.
            write_atomically(own_stem + _OPTIMIZERS_ENDING, partial(_write_optimizers, model))
        with without_optimizer(model):
            write_atomically(f"{own_stem}{ending}", partial(save_weights, model))
            if save_architecture and is_keras3(model):
                write_atomically(f"{own_stem}.keras", model.save)
            elif save_architecture:
                model.save(own_stem, include_optimizer=False)
    return f"{stem}{ending}"


def load_model(model: Model, path: str | os.PathLike[str], load_optimizer: bool) -> None:
    """Load what `save_model` has saved; if that fails nothing is changed."""
    name = find_file(path, "weights file")
    with PreservedState([model]):
        if load_optimizer:
            _load_optimizers(model, name)
        with without_optimizer(model):
            load_weights(model, name)


@contextmanager
def without_optimizer(model: Model) -> Iterator[None]:
    """Hide a model's optimizers from Keras, which would take them for a part of the model."""
    attributes = model.__dict__
    hidden = {
        name: attributes.pop(name)
        for name in ("current_optimizer", "optimizer")
        # A model may have an attribute of its own under this name.
        if name in attributes
        and (name not in taken_names(model) or hasattr(attributes[name], "apply_gradients"))
    }
    if "optimizer" in hidden:
        # Keras 2 reads this when it saves layers.
        attributes["optimizer"] = None
    try:
        yield
    finally:
        attributes.update(hidden)


@contextmanager
def _on_one_worker(stem: str) -> Iterator[str]:
    """Yield the stem of the files to write, which are temporary except on the first worker.

    All workers write, because they must read synchronized variables together.
    """
    if processes.world_size() == 1:
        yield stem
        return
    with raise_on_all_ranks(processes, "Saving a model"), TemporaryDirectory() as elsewhere:
        yield os.path.join(elsewhere, os.path.basename(stem)) if processes.rank() else stem


def _write_optimizers(model: Model, path: str) -> None:
    """Write the state of the current optimizer, and of all optimizers of a schedule."""
    optimizers, current = optimizers_of(model), current_optimizer_index(model)
    if len(optimizers) < 2 or current is None:
        optimizers, current = [get_metadata(model, "current_optimizer")], 0
    states = {
        "optimizers": [optimizer_state(optimizer, model) for optimizer in optimizers],
        "current": current,
    }
    blocks: dict[str, Block] = {}
    write_archive(path, encode(states, "", blocks, lambda value: None), blocks)


def _load_optimizers(model: Model, weights_path: str) -> None:
    if weights_path.endswith(_KERAS3_ENDING):
        stem = weights_path.removesuffix(_KERAS3_ENDING)
    else:
        stem = os.path.splitext(weights_path)[0]
    path = stem + _OPTIMIZERS_ENDING
    require_optimizer_file(path)
    source = f"The optimizer file '{path}'"
    with open_archive(path, source) as archive:
        saved = decode(archive.content, {"array": lambda key: block_to_array(archive.read(key))})
        states, current = saved["optimizers"], saved["current"]
    for optimizer, state in pair_optimizers(model, states[current], states, source):
        load_optimizer_state(optimizer, model, state, source)


def save_weights(model: Model, path: str) -> None:
    """Write a model's weights to a file of Keras, with a checksum."""
    import h5py

    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        if _is_legacy(path):
            write_order(model, file)
        file.attrs[_CHECKSUM] = _checksum(file)


def load_weights(model: Model, name: str) -> None:
    """Fill a model from a file of Keras; raise a ValueError if it does not fit.

    Keras reads only the arrays of a file, also of a whole model, and executes nothing.
    """
    if not name.endswith(_ENDINGS):
        raise ValueError(
            f"The weights file '{name}' ends with none of {list(_ENDINGS)}. Save it again with "
            "model.save_weights('name.weights.h5')."
        )
    if not model.built:
        raise no_variables(model, f"so that '{name}' cannot be loaded")
    source, title = f"The weights file '{name}'", type(model).__name__
    order_error: ValueError | None = None
    refuse_checkpoint(name, "weights file")
    with reading(source, f"is damaged, or of another model than {title}"):
        require_content(name)
        _compare_checksum(name)
        _require_known_arrays(model, name)
        try:
            if _is_legacy(name):
                load_legacy(model, name)
            else:
                model.load_weights(name)
        except ValueError as error:
            if not _has_same_shapes(model, name):
                raise
            order_error = error
    if order_error is not None:
        reason = " ".join(str(order_error).split())
        raise ValueError(
            f"{source} has arrays of the shapes of {title}'s weights, but in another or an unknown "
            "order. Other weights may have been trainable when it was saved: "
            f"{reason[:400].rstrip('.')}. Load it while the same weights are trainable as then, "
            "and set `trainable` afterwards."
        ) from order_error


def _is_legacy(path: str) -> bool:
    """Return whether a file has the older layout, with lists of the weights of each layer."""
    return not path.endswith((_KERAS3_ENDING, ".keras"))


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
    """Return the CRC-32 of the arrays in an open file: names, dtypes, shapes, values and order."""
    crc = 0
    for group in file.values():
        crc = zlib.crc32(np.asarray(group.attrs.get(ORDER, ()), np.int32).tobytes(), crc)
    for name, array in _arrays_in(file).items():
        if not array.dtype.hasobject:
            crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
            crc = zlib.crc32(array[()].tobytes(), crc)
    return crc


def _require_known_arrays(model: Model, path: str) -> None:
    """Raise an error for arrays that the model does not have, which Keras itself would ignore."""
    if _is_legacy(path):
        return  # Keras counts the layers in files of this older layout.
    names = _shapes_in(path).keys()
    if len(names) <= len(model.weights):
        return
    # Layers may save more than their weights, so compare with a file of this model.
    with TemporaryDirectory() as folder:
        own_path = os.path.join(folder, INSIDE)
        model.save_weights(own_path)
        unknown = sorted(names - _shapes_in(own_path).keys())
    if unknown:
        raise ValueError(f"it has {unknown[:4]}, which the model does not have")


def _has_same_shapes(model: Model, path: str) -> bool:
    """Return whether the arrays of a file have the shapes of a model's weights, in any order."""
    shapes = sorted(tuple(weight.shape) for weight in model.weights)
    return shapes == sorted(_shapes_in(path).values())


def _shapes_in(path: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a file of Keras by path."""
    import h5py

    with ExitStack() as stack:
        opened: str | IO[bytes] = path
        if path.endswith(".keras"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            opened = stack.enter_context(archive.open(INSIDE))
        file = stack.enter_context(h5py.File(opened, "r"))
        # A file of a whole model in the older layout has its optimizer, too.
        group = file.get("model_weights", file) if _is_legacy(path) else file
        arrays = _arrays_in(group)
        return {
            name: array.shape for name, array in arrays.items() if not is_saved_beside_layers(name)
        }


def _arrays_in(file: Any) -> dict[str, Any]:
    """Return the arrays of an open file of HDF5 by path."""
    import h5py

    names: list[str] = []
    file.visit(names.append)
    return {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
