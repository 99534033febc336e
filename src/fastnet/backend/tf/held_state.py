"""State beside weights in TensorFlow: generators, and variables that are not weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.held_state import HeldState
from fastnet.backend.model_metadata import NAMES, every_optimizer_of
from fastnet.backend.tf._keras_internals import (
    LISTS_OF_PARTS,
    PREFIX_OF_TRACKING,
    generator_in,
    has_unreadable_seeds,
    is_keras2_nadam,
    trained_weights,
)
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizers import inner_optimizer
from fastnet.backend.tf.weights import named_layers
from fastnet.types import Model
from fastnet.util.warnings import warn


def submodules_of(value: Any) -> dict[str, Any] | None:
    """Return a layer and its nested layers by path, or a metric; None for anything else."""
    for keras in filter(None, map(sys.modules.get, ("keras", "tf_keras"))):
        if isinstance(value, keras.layers.Layer):
            return named_layers(value)
        if isinstance(value, keras.metrics.Metric):
            return {"": value}
    return None


def attributes_of(part: Any, is_saved: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a layer or a metric, public ones first.

    Weights that are trained are left out, because they are not trained outside of a model.
    """
    trained = set(map(id, trained_weights(part)))
    for name in sorted(vars(part), key=lambda name: name.startswith("_")):
        value = vars(part)[name]
        if name in NAMES or name in LISTS_OF_PARTS or name.startswith(PREFIX_OF_TRACKING):
            continue
        if id(value) not in trained:
            yield name, value


def saved_tensors_of(model: Model) -> list[Any]:
    """List the weights of a model, which are saved with it."""
    return list(model.weights) if model.built else []


def global_generator() -> tf.random.Generator | None:
    """Return TensorFlow's global generator, or None if op determinism forbids to make it."""
    try:
        return tf.random.get_global_generator()
    except RuntimeError:
        return None


def get_held_state(value: Any) -> HeldState | None:
    """Return the state of a generator or a variable; None for anything else."""
    kind = type(value).__name__
    generator = value if isinstance(value, tf.random.Generator) else generator_in(value)
    if generator is not None and isinstance(generator.state, tf.distribute.DistributedValues):
        return _held_by_replicas(generator.state.values)
    if generator is not None:
        return _held_variable("Generator", True, generator.state)
    if kind == "SeedGenerator" and hasattr(value, "state"):
        return _held_variable(kind, True, value.state)
    is_variable = isinstance(value, tf.Variable) or (
        hasattr(type(value), "__tf_tensor__") and hasattr(value, "assign")
    )
    if not is_variable or not _is_numeric(value):
        return None
    return _held_variable("Variable", False, value)


def _held_variable(kind: str, is_random: bool, variable: Any) -> HeldState:
    return HeldState(
        kind, is_random, lambda: np.asarray(variable.numpy()), partial(_assign, variable)
    )


def _held_by_replicas(states: Sequence[Any]) -> HeldState:
    """Return the states of a generator, one for each replica of this process."""

    def write(values: Any) -> None:
        if len(values) != len(states):
            raise ValueError(f"has states of {len(values)} devices, but runs on {len(states)}")
        for state, value in zip(states, values, strict=True):
            _assign(state, value)

    return HeldState(
        "Generators", True, lambda: np.stack([state.numpy() for state in states]), write
    )


def _assign(variable: Any, value: Any) -> None:
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype).name
    if not shape.is_compatible_with(value.shape) or dtype != value.dtype.name:
        raise ValueError(
            f"has the shape {value.shape} and dtype {value.dtype.name}, where that of the program "
            f"has {tuple(shape)} and {dtype}"
        )
    variable.assign(value)


def _is_numeric(variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype)
    return bool(dtype.is_numpy_compatible) and dtype not in (tf.string, tf.resource, tf.variant)


# A layer draws nothing if all of these that it has are 0.
_STRENGTHS = ("dropout", "rate", "recurrent_dropout", "stddev")


def warn_of_unsaved(models: Iterable[Model], values: Iterable[Any]) -> None:
    """Warn of layers and optimizers of Keras 2 that have state which cannot be read."""
    layers = [layer for model in models for layer in all_layers(model)]
    for value in values:
        layers += (submodules_of(value) or {}).values()
    for name in sorted({str(layer.name) for layer in layers if _draws_unreadably(layer)}):
        warn(
            f"The state of the random numbers of layer '{name}' cannot be read in Keras 2, so that "
            "a resumed run draws different numbers. Use Keras 3.",
        )
    optimizers = [optimizer for model in models for optimizer in every_optimizer_of(model)]
    inner_optimizers = map(inner_optimizer, optimizers)
    nadams = [optimizer for optimizer in inner_optimizers if is_keras2_nadam(optimizer)]
    for name in sorted({type(optimizer).__name__ for optimizer in nadams}):
        warn(
            f"The optimizer {name} of Keras 2 keeps state that cannot be saved, so that a resumed "
            "run differs. Use Keras 3, or another optimizer."
        )


def _draws_unreadably(layer: Any) -> bool:
    """Return whether a layer of Keras 2 draws from a generator that cannot be read."""
    strengths = [getattr(layer, name) for name in _STRENGTHS if hasattr(layer, name)]
    return has_unreadable_seeds(layer) and (any(strengths) or not strengths)
