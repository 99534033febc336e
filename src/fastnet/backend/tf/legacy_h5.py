"""The order of weights in Keras's older layout of HDF5 files.

Keras lists the trainable weights of a layer before the others, so that the order depends on which
layers inside of it are frozen, and pairs them by position when it loads them.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fastnet.backend.tf.weights import all_trainable

ALL_TRAINABLE = "fastnet_all_trainable"
"""The attribute of a file that was saved while all layers were trainable."""


def in_saved_order(model: Any, path: str) -> AbstractContextManager[None]:
    """Return a context in which Keras lists a model's weights in the order of a file.

    It is known from the attribute, or from the names in the file.
    """
    import h5py

    with h5py.File(path, "r") as file:
        if file.attrs.get(ALL_TRAINABLE, False):
            return all_trainable(model)
        saved = [_numbered(names) for names in _names_by_layer(file)]
    weights = _weights_by_layer(model)
    names = _names_of(weights)
    with all_trainable(model):
        unfrozen_weights = _weights_by_layer(model)
        unfrozen_names = _names_of(unfrozen_weights)
    if saved == unfrozen_names:
        return all_trainable(model)
    if saved == names:
        return nullcontext()
    is_reordered = list(map(sorted, saved)) == list(map(sorted, names))
    is_ambiguous = [list(map(id, each)) for each in weights] != [
        list(map(id, each)) for each in unfrozen_weights
    ]
    if is_reordered or is_ambiguous:
        raise ValueError(
            "in this layout Keras orders weights by what is trainable, which may have differed "
            "when the file was saved. Freeze the same layers while you load it, and save it again "
            "with save_model"
        )
    return nullcontext()


def _weights_by_layer(model: Any) -> list[list[Any]]:
    """Return the weights of each layer that has any, as Keras lists them."""
    each = [layer.trainable_weights + layer.non_trainable_weights for layer in model.layers]
    return [weights for weights in each if weights]


def _names_of(weights_by_layer: list[list[Any]]) -> list[list[str]]:
    return [
        _numbered([str(getattr(one, "path", one.name)) for one in weights])
        for weights in weights_by_layer
    ]


def _names_by_layer(file: Any) -> list[list[str]]:
    """Return the names of the weights of each layer that has any, from an open file."""
    group = file if _strings(file, "layer_names") else file.get("model_weights", file)
    each = [_strings(group[name], "weight_names") for name in _strings(group, "layer_names")]
    return [names for names in each if names]


def _strings(group: Any, name: str) -> list[str]:
    """Return an attribute with strings, which Keras divides into numbered ones if it is long."""
    numbers = {key: key.removeprefix(name) for key in group.attrs if key.startswith(name)}
    keys = sorted(
        (int(number or 0), key) for key, number in numbers.items() if f"0{number}".isdigit()
    )
    items = [item for _, key in keys for item in group.attrs[key]]
    return [item.decode() if isinstance(item, bytes) else str(item) for item in items]


def _numbered(names: list[str]) -> list[str]:
    """Number the layers in names from 0, because Keras numbers them as a process makes them."""
    paths = [[_divided(part) for part in name.removesuffix(":0").split("/")] for name in names]
    numbers: dict[str, set[int]] = {}
    for path in paths:
        for name, number in path:
            numbers.setdefault(name, set()).add(number)
    ranks = {name: sorted(used) for name, used in numbers.items()}
    return [
        "/".join(f"{name}_{ranks[name].index(number)}" for name, number in path) for path in paths
    ]


def _divided(name: str) -> tuple[str, int]:
    """Return the name of a layer without its number, and the number, which is 0 without one."""
    number = re.search(r"_(\d+)$", name)
    return (name, 0) if number is None else (name[: number.start()], int(number[1]))
