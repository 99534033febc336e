"""Weights of Keras models by layer and name, and which of them are trainable."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

from fastnet.backend.tf._keras_internals import (
    children_of,
    is_keras3,
    own_weights,
    sublayers,
    trained_weights,
)
from fastnet.types import Model


def named_layers(model: Model) -> dict[str, Any]:
    """Return a model and its nested layers, each once, by the path of their names.

    Keras numbers layers without a name as a process makes them. So a path has the names without
    their numbers, and numbers layers of equal names in one layer in their order.
    """
    named: dict[str, Any] = {"": model}
    seen = {id(model)}

    def walk(outer: Any, prefix: str) -> None:
        for child in children_of(outer):
            path = unused(prefix + _without_number(child.name), named)
            if id(child) not in seen:
                seen.add(id(child))
                named[path] = child
                walk(child, f"{path}/")

    walk(model, "")
    return named


def named_weights(model: Model) -> dict[str, Any]:
    """Return the weights of a model by layer and name, in an order that no freezing changes."""
    remaining = {id(weight): weight for weight in model.weights}
    named: dict[str, Any] = {}
    for path, layer in named_layers(model).items():
        for weight in own_weights(layer):
            if remaining.pop(id(weight), None) is not None:
                name = f"{path}/{short_name(weight)}" if path else short_name(weight)
                named[unused(name, named)] = weight
    for weight in remaining.values():
        named[unused(short_name(weight), named)] = weight
    return named


def short_name(variable: Any) -> str:
    """Return the last part of a variable's name without its number, which differs by process."""
    return _without_number(str(variable.name).rpartition("/")[2].partition(":")[0])


def _without_number(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def unused(name: str, used: Collection[str]) -> str:
    """Return a name with a number if it is used already."""
    names = chain([name], (f"{name}#{number}" for number in count(1)))
    return next(candidate for candidate in names if candidate not in used)


def trainable_flags(model: Model) -> dict[str, dict[str, bool]]:
    """Return which layers of a model are trainable, and which weights, by their paths."""
    layers = {path: bool(layer.trainable) for path, layer in named_layers(model).items()}
    # A variable of Keras 2 cannot be frozen by itself.
    weights = named_weights(model) if is_keras3(model) else {}
    return {
        "layers": layers,
        "weights": {path: bool(weight.trainable) for path, weight in weights.items()},
    }


def set_trainable_flags(model: Model, flags: Mapping[str, Mapping[str, bool]]) -> None:
    """Restore the result of `trainable_flags`; layers that it lacks stay as they are."""
    current = trainable_flags(model)
    flags = {kind: {**current[kind], **flags[kind]} for kind in current}
    if flags == current:
        return
    layers, weights = named_layers(model), named_weights(model)
    # Setting a layer sets its nested layers too, and several layers may share a nested layer, so
    # set the layers with the fewest nested layers last.
    for path in sorted(layers, key=lambda path: -len(sublayers(layers[path]))):
        layers[path].trainable = flags["layers"][path]
    for path in current["weights"]:
        weights[path].trainable = flags["weights"][path]


@contextmanager
def all_trainable(model: Model) -> Iterator[None]:
    """Make all layers of a model trainable in this context, which Keras orders weights by."""
    flags = trainable_flags(model)
    layers, weights = named_layers(model), named_weights(model)
    trained = {id(weight) for layer in layers.values() for weight in trained_weights(layer)}
    trainable = {
        "layers": dict.fromkeys(layers, True),
        "weights": {path: id(weights[path]) in trained for path in flags["weights"]},
    }
    # Setting the model's flag is not enough: TensorFlow ignores an attribute that does not change.
    set_trainable_flags(model, trainable)
    try:
        yield
    finally:
        set_trainable_flags(model, flags)
