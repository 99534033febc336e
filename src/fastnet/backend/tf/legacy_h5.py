"""Loads Keras's older layout of HDF5 files, in which each layer has a list of its weights.

Keras lists the trainable weights of a layer before the others, so that the order depends on which
layers inside of it are frozen, and pairs them by position when it loads them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastnet.backend.tf._keras_internals import own_weights, sublayers, trained_weights
from fastnet.backend.tf.weights import all_trainable
from fastnet.util.warnings import warn

ALL_TRAINABLE = "fastnet_all_trainable"
"""The attribute of a file that was saved while all layers were trainable."""

_NAMES = "weight_names"


def load_legacy(model: Any, path: str) -> None:
    """Let Keras fill a model from a file, with each layer's weights paired by name.

    Raises:
        ValueError: If the names do not tell the order of weights, and what is trainable affects it.
    """
    import h5py

    with h5py.File(path, "r") as file:
        is_saved_unfrozen = bool(file.attrs.get(ALL_TRAINABLE, False))
        saved = _names_by_layer(file)
    if is_saved_unfrozen:
        with all_trainable(model):
            model.load_weights(path)
        return
    layers = [layer for layer in model.layers if layer.weights]
    orders: dict[str, list[int]] = {}
    # Keras itself refuses a file with another number of layers.
    for layer, (saved_name, names) in zip(layers, saved.items(), strict=False):
        order = _order_of(_relative(names, saved_name), _relative(_names_of(layer), layer.name))
        if order is None:
            _check_order(layer, model)
        elif order != list(range(len(names))):
            orders[saved_name] = order
    if not orders:
        model.load_weights(path)
        return
    with TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        shutil.copyfile(path, copy)
        _reorder(copy, orders)
        model.load_weights(copy)


def _order_of(saved: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Return where a layer's weights are in a file's list; None if the names do not tell it."""
    places = {name: place for place, name in enumerate(saved)}
    if len(places) < len(saved) or sorted(saved) != sorted(names):
        return None
    return [places[name] for name in names]


def _check_order(layer: Any, model: Any) -> None:
    """Check a layer whose weights Keras pairs by position, which may be wrong if some are frozen.

    Where only one layer has weights of its own, no freezing changes the order.
    """
    owners = [part for part in (layer, *sublayers(layer)) if own_weights(part)]
    if len(owners) < 2 or not any(map(trained_weights, owners)):
        return
    now = list(map(id, _weights_of(layer)))
    with all_trainable(model):
        unfrozen = list(map(id, _weights_of(layer)))
    if now != unfrozen:
        raise ValueError(
            f"in this layout Keras orders the weights of layer '{layer.name}' by what is "
            "trainable, and the names in the file do not tell the order. If the same layers were "
            "frozen when it was saved, call model.load_weights, and save it with save_model"
        )
    warn(
        f"The names in the file do not tell the order of the weights of layer '{layer.name}', "
        "which Keras changes if layers inside of it are frozen. They are loaded as if none was "
        "frozen when the file was saved. Save it again with save_model."
    )


def _weights_of(layer: Any) -> list[Any]:
    """Return the weights of a layer in the order of this layout."""
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _names_of(layer: Any) -> list[str]:
    return [str(getattr(weight, "path", weight.name)) for weight in _weights_of(layer)]


def _names_by_layer(file: Any) -> dict[str, list[str]]:
    """Return the names of the weights of each layer that has any, from an open file."""
    group = _layers_in(file)
    each = {name: _strings(group[name], _NAMES) for name in _strings(group, "layer_names")}
    return {name: names for name, names in each.items() if names}


def _layers_in(file: Any) -> Any:
    return file if _strings(file, "layer_names") else file.get("model_weights", file)


def _strings(group: Any, name: str) -> list[str]:
    """Return an attribute with strings, which Keras divides into numbered ones if it is long."""
    items = [item for key in _keys(group, name) for item in group.attrs[key]]
    return [item.decode() if isinstance(item, bytes) else str(item) for item in items]


def _keys(group: Any, name: str) -> list[str]:
    """Return the names of an attribute, or of those that Keras has divided it into, in order."""
    numbers = {key: key.removeprefix(name) for key in group.attrs if key.startswith(name)}
    found = [(int(number or 0), key) for key, number in numbers.items() if f"0{number}".isdigit()]
    return [key for _, key in sorted(found)]


def _reorder(path: str, orders: Mapping[str, Sequence[int]]) -> None:
    """Change the order of the weights of layers in a file."""
    import h5py

    with h5py.File(path, "r+") as file:
        group = _layers_in(file)
        for layer, order in orders.items():
            attributes = group[layer].attrs
            keys = _keys(group[layer], _NAMES)
            lengths = [len(attributes[key]) for key in keys]
            names = np.concatenate([np.asarray(attributes[key]) for key in keys])[list(order)]
            for key, part in zip(keys, np.split(names, np.cumsum(lengths)[:-1]), strict=True):
                attributes[key] = part


def _relative(names: Sequence[str], layer: str) -> list[str]:
    """Return the names of a layer's weights without what is outside of it, and numbers from 0.

    Keras numbers layers as a process makes them.
    """
    paths = [name.removesuffix(":0").split("/") for name in names]
    inside = [path[path.index(layer) + 1 :] if layer in path else path for path in paths]
    divided = [[_divided(part) for part in path] for path in inside]
    numbers: dict[str, set[int]] = {}
    for path in divided:
        for name, number in path:
            numbers.setdefault(name, set()).add(number)
    ranks = {name: sorted(used) for name, used in numbers.items()}
    return [
        "/".join(f"{name}_{ranks[name].index(number)}" for name, number in path)
        for path in divided
    ]


def _divided(name: str) -> tuple[str, int]:
    """Return the name of a layer without its number, and the number, which is 0 without one."""
    number = re.search(r"_(\d+)$", name)
    return (name, 0) if number is None else (name[: number.start()], int(number[1]))
