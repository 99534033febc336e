"""The state of a run in TensorFlow: models with their optimizers, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.archive import Block
from fastnet.backend.model_metadata import name_of, optimizers_of
from fastnet.backend.tf._keras_internals import (
    has_unreadable_seeds,
    set_shared_seeds,
    shared_seeds,
)
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizers import load_optimizer_state, optimizer_state
from fastnet.backend.tf.preserve_state import generator_states, require_variables
from fastnet.backend.tree import block_to_array
from fastnet.util.warnings import warn

# A layer draws nothing if all of these that it has are 0.
_STRENGTHS = ("dropout", "rate", "recurrent_dropout", "stddev")


def model_state(model: Any) -> dict[str, Any]:
    """Return the state of a model and its optimizers."""
    require_variables([model])
    return {
        "weights": [[_name_of(one), np.asarray(one.numpy())] for one in model.weights],
        "paths": _paths_of(model),
        "optimizers": [optimizer_state(one) for one in optimizers_of(model)],
    }


def load_model_state(model: Any, state: Any) -> None:
    """Load the result of `model_state`; raise a ValueError if it does not fit."""
    require_variables([model])
    name = name_of(model)
    own = [(_name_of(one), tuple(one.shape), _dtype_of(one)) for one in model.weights]
    saved = [(one, value.shape, value.dtype.name) for one, value in state["weights"]]
    if own != saved:
        differing = [both for both in zip(saved, own, strict=False) if both[0] != both[1]]
        where = "has {}, where the model has {}".format(*differing[0]) if differing else "differs"
        raise ValueError(
            f"it has {len(saved)} weights of model '{name}', which has {len(own)}, and {where}. "
            "Use the model that was saved"
        )
    saved_paths, paths = state.get("paths", []), _paths_of(model)
    # Automatic names differ between builds, so only the same paths in another order are an error.
    moved = [both for both in zip(saved_paths, paths, strict=False) if both[0] != both[1]]
    if moved and sorted(saved_paths) == sorted(paths):
        where = "has '{}', where the model has '{}'".format(*moved[0])
        raise ValueError(f"it {where}. Build model '{name}' with its layers in the saved order")
    for optimizer, one in zip(optimizers_of(model), state["optimizers"], strict=True):
        load_optimizer_state(optimizer, one, f"the state of model '{name}'")
    for variable, (_, value) in zip(model.weights, state["weights"], strict=True):
        variable.assign(value)


def random_state(models: list[Any]) -> list[Any]:
    """Return the states of the generators of TensorFlow, of Keras, and of layers."""
    layers = [layer for model in models for layer in all_layers(model)]
    for name in sorted({str(layer.name) for layer in layers if _draws_unreadably(layer)}):
        warn(
            f"The state of the random numbers of layer '{name}' cannot be read in Keras 2, so that "
            "a resumed run draws different numbers. Use Keras 3.",
        )
    shared = shared_seeds()
    states = [*generator_states(models), *([] if shared is None else [shared])]
    return [np.asarray(one.numpy()) for one in states]


def load_random_state(models: list[Any], values: list[Any]) -> None:
    """Restore the result of `random_state`; raise a ValueError if it is of other models."""
    states = generator_states(models)
    # Keras makes its own generator when it is first used.
    shared = values[len(states)] if len(values) == len(states) + 1 else None
    values = values[: len(states)] if shared is not None else values
    saved, own = ([(tuple(one.shape), _dtype_of(one)) for one in each] for each in (values, states))
    if saved != own:
        raise ValueError(f"its random numbers have states {saved}, where the program has {own}")
    for state, value in zip(states, values, strict=True):
        state.assign(value)
    if shared is not None:
        set_shared_seeds(shared)


def to_block(value: Any) -> Block | None:
    """Convert a tensor or variable to its type, shape and bytes; return None for anything else."""
    if not (tf.is_tensor(value) or isinstance(value, tf.Variable)) or not hasattr(value, "numpy"):
        return None
    array = np.asarray(value.numpy())
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.dtype != object else b""
    return Block(array.dtype.name, array.shape, data)


def from_block(block: Block) -> tf.Tensor:
    """Make a tensor of a block."""
    return tf.constant(block_to_array(block))


def _name_of(variable: Any) -> str:
    """Return the last part of a variable's name; Keras numbers the others during a process."""
    return str(variable.name).rpartition("/")[2].partition(":")[0]


def _paths_of(model: Any) -> list[str]:
    """Return the paths of a model's weights, such as "dense_1/kernel", without the model's name."""
    paths = [str(getattr(one, "path", one.name)) for one in model.weights]
    return [path.removeprefix(f"{model.name}/") for path in paths]


def _dtype_of(value: Any) -> str:
    return str(tf.as_dtype(value.dtype).name)


def _draws_unreadably(layer: Any) -> bool:
    """Return whether a layer of Keras 2 draws from a generator that cannot be read."""
    strengths = [getattr(layer, name) for name in _STRENGTHS if hasattr(layer, name)]
    return has_unreadable_seeds(layer) and (any(strengths) or not strengths)
