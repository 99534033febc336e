"""Keras's older layout of HDF5 files, in which each layer has a list of its weights.

Keras lists the trainable weights of a layer before the others, so that the order depends on which
layers inside of it are frozen, and pairs them by position when it loads them. So files of fastnet
have an attribute with the order that weights have when nothing is frozen; in other files the names
tell the order.
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
from fastnet.types import Model
from fastnet.util.warnings import warn

ORDER = "fastnet_order"
"""An attribute of layers: where each weight is in the list, in the order with nothing frozen."""

_NAMES = "weight_names"


def write_order(model: Model, file: Any) -> None:
    """Note the order of weights in an open file that Keras has just written."""
    layers = _layers_with_weights(model)
    for layer, weights, unfrozen in zip(layers, *_orders(model, layers), strict=True):
        places = {id(weight): place for place, weight in enumerate(weights)}
        order = [places[id(weight)] for weight in unfrozen]
        _layers_in(file)[layer.name].attrs[ORDER] = np.array(order, np.int32)


def load_legacy(model: Model, path: str) -> None:
    """Let Keras fill a model from a file, whatever was frozen when it was saved.

    Raises:
        ValueError: If the order of weights is unknown, and differs while nothing is frozen.
    """
    import h5py

    with h5py.File(path, "r") as file:
        saved = _saved_layers(file)
    layers = _layers_with_weights(model)
    changed: dict[str, list[int]] = {}
    # Keras itself refuses a file with another number of layers.
    for layer, name, weights, unfrozen in zip(layers, saved, *_orders(model, layers), strict=False):
        names, order = saved[name]
        if order is not None and len(order) == len(weights):
            places = {id(weight): place for weight, place in zip(unfrozen, order, strict=True)}
            new_order: list[int] | None = [places[id(weight)] for weight in weights]
        else:
            own_names = [str(getattr(weight, "path", weight.name)) for weight in weights]
            new_order = _match(_relative(names, name), _relative(own_names, layer.name))
        if new_order is None:
            _check_order(layer, is_reordered=list(map(id, weights)) != list(map(id, unfrozen)))
        elif new_order != list(range(len(names))):
            changed[name] = new_order
    if not changed:
        model.load_weights(path)
        return
    with TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        shutil.copyfile(path, copy)
        _reorder(copy, changed)
        model.load_weights(copy)


def _match(saved: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Return where a layer's weights are in a file's list; None if the names do not tell it."""
    places = {name: place for place, name in enumerate(saved)}
    if len(places) < len(saved) or sorted(saved) != sorted(names):
        return None
    return [places[name] for name in names]


def _check_order(layer: Any, is_reordered: bool) -> None:
    """Warn, or raise an error, if Keras may pair the weights of a layer wrongly.

    Where only one layer has weights of its own, no freezing changes the order.
    """
    owners = [part for part in (layer, *sublayers(layer)) if own_weights(part)]
    if len(owners) < 2 or not any(map(trained_weights, owners)):
        return
    if is_reordered:
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


def _layers_with_weights(model: Model) -> list[Any]:
    return [layer for layer in model.layers if layer.weights]


def _orders(model: Model, layers: Sequence[Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the weights of layers as Keras lists them now, and as if nothing was frozen."""
    now = [_weights_of(layer) for layer in layers]
    with all_trainable(model):
        return now, [_weights_of(layer) for layer in layers]


def _weights_of(layer: Any) -> list[Any]:
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _saved_layers(file: Any) -> dict[str, tuple[list[str], list[int] | None]]:
    """Return the names and the order of the weights of each layer that has any."""
    group = _layers_in(file)
    saved = {}
    for layer in _strings(group, "layer_names"):
        names, order = _strings(group[layer], _NAMES), group[layer].attrs.get(ORDER)
        if names:
            saved[layer] = names, None if order is None else [int(place) for place in order]
    return saved


def _layers_in(file: Any) -> Any:
    """Return the group of the layers, which is the file itself if it has weights alone."""
    return file if _keys(file, "layer_names") else file.get("model_weights", file)


def _strings(group: Any, name: str) -> list[str]:
    items = [item for key in _keys(group, name) for item in group.attrs[key]]
    return [item.decode() if isinstance(item, bytes) else str(item) for item in items]


def _keys(group: Any, name: str) -> list[str]:
    """Return the keys of an attribute, which Keras divides into numbered ones if it is long."""
    numbers = {key: key.removeprefix(name) for key in group.attrs if key.startswith(name)}
    numbered = [
        (int(number or 0), key) for key, number in numbers.items() if f"0{number}".isdigit()
    ]
    return [key for _, key in sorted(numbered)]


def _reorder(path: str, orders: Mapping[str, Sequence[int]]) -> None:
    """Change the order of the weights of layers in a file."""
    import h5py

    with h5py.File(path, "r+") as file:
        group = _layers_in(file)
        for layer, order in orders.items():
            attributes = group[layer].attrs
            parts = {key: np.asarray(attributes[key]) for key in _keys(group[layer], _NAMES)}
            names = np.concatenate(list(parts.values()))[list(order)]
            ends = np.cumsum([len(part) for part in parts.values()])
            attributes.update(zip(parts, np.split(names, ends[:-1]), strict=True))


def _relative(names: Sequence[str], layer: str) -> list[str]:
    """Return the paths of a layer's weights inside of it, with the numbers in names from 0.

    Keras numbers layers in the order in which a process makes them.
    """
    paths = [name.removesuffix(":0").split("/") for name in names]
    inside = [path[path.index(layer) + 1 :] if layer in path else path for path in paths]
    divided = [[_split_number(part) for part in path] for path in inside]
    numbers: dict[str, set[int]] = {}
    for path in divided:
        for name, number in path:
            numbers.setdefault(name, set()).add(number)
    ranks = {name: sorted(used) for name, used in numbers.items()}
    return [
        "/".join(f"{name}_{ranks[name].index(number)}" for name, number in path) for path in divided
    ]


def _split_number(name: str) -> tuple[str, int]:
    """Return the name of a layer without its number, and the number, which is 0 without one."""
    number = re.search(r"_(\d+)$", name)
    return (name, 0) if number is None else (name[: number.start()], int(number[1]))
