"""The state of a run in TensorFlow: models with their optimizers, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.archive import Block
from fastnet.backend.model_metadata import name_of, optimizers_of
from fastnet.backend.tf._keras_internals import set_shared_seeds, shared_seeds
from fastnet.backend.tf.held_state import global_generator
from fastnet.backend.tf.models import all_layers, require_variables
from fastnet.backend.tf.optimizers import load_optimizer_state, optimizer_state
from fastnet.backend.tf.weights import named_weights, set_trainable_flags, trainable_flags
from fastnet.backend.tree import block_to_array
from fastnet.types import Model


def model_state(model: Model) -> dict[str, Any]:
    """Return the state of a model and its optimizers."""
    require_variables([model])
    weights = named_weights(model)
    return {
        "weights": {name: np.asarray(weight.numpy()) for name, weight in weights.items()},
        "layers": _layers_of(model),
        "trainable": trainable_flags(model),
        "optimizers": [optimizer_state(optimizer, model) for optimizer in optimizers_of(model)],
    }


def load_model_state(model: Model, state: Any) -> None:
    """Load the result of `model_state`; raise a ValueError if it does not fit."""
    require_variables([model])
    name = name_of(model)
    weights = named_weights(model)
    expected = [(key, tuple(weight.shape), _dtype_of(weight)) for key, weight in weights.items()]
    saved = [(key, array.shape, array.dtype.name) for key, array in state["weights"].items()]
    if saved != expected:
        difference = "differs"
        for saved_weight, weight in zip(saved, expected, strict=False):
            if saved_weight != weight:
                difference = f"has {saved_weight}, where the model has {weight}"
                break
        raise ValueError(
            f"it has {len(saved)} weights of model '{name}', which has {len(expected)}, and "
            f"{difference}. Use the model that was saved"
        )
    saved_layers, layers = state["layers"], _layers_of(model)
    # Automatic numbers differ between builds, so only the same names in another order are an error.
    if sorted(saved_layers) == sorted(layers):
        for saved_layer, layer in zip(saved_layers, layers, strict=True):
            if saved_layer != layer:
                raise ValueError(
                    f"it has '{saved_layer}', where the model has '{layer}'. Build model '{name}' "
                    "with its layers in the saved order"
                )
    set_trainable_flags(model, state["trainable"])
    for optimizer, settings in zip(optimizers_of(model), state["optimizers"], strict=True):
        load_optimizer_state(optimizer, model, settings, f"the state of model '{name}'")
    for key, value in state["weights"].items():
        weights[key].assign(value)


def random_state(models: list[Model]) -> dict[str, Any]:
    """Return the states of the global generators of TensorFlow and of Keras."""
    generator, shared = global_generator(), shared_seeds()
    return {
        # Each is None if the program cannot have drawn from it.
        "tensorflow": None if generator is None else np.asarray(generator.state.numpy()),
        "algorithm": None if generator is None else int(generator.algorithm),
        "keras": None if shared is None else np.asarray(shared.numpy()),
    }


def load_random_state(models: list[Model], state: dict[str, Any]) -> None:
    """Restore the result of `random_state`; raise a ValueError if it is of other generators."""
    value = state["tensorflow"]
    generator: Any = global_generator()
    if value is not None and generator is None:
        generator = tf.random.Generator.from_state(value, state["algorithm"])
        tf.random.set_global_generator(generator)
    elif value is not None:
        saved = tuple(value.shape), _dtype_of(value)
        expected = tuple(generator.state.shape), _dtype_of(generator.state)
        if saved != expected:
            raise ValueError(
                f"its random numbers have a state of shape and dtype {saved}, where that of the "
                f"program has {expected}"
            )
        generator.state.assign(value)
    if state["keras"] is not None:
        set_shared_seeds(state["keras"])


def to_block(value: Any) -> Block | None:
    """Convert a tensor or variable to its type, shape and bytes; return None for anything else."""
    if not (tf.is_tensor(value) or isinstance(value, tf.Variable)) or not hasattr(value, "numpy"):
        return None
    array = np.asarray(value.numpy())
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.dtype != object else b""
    return Block(array.dtype.name, array.shape, data)


def tensor_makers(read: Callable[[str], Block]) -> dict[str, Callable[..., tf.Tensor]]:
    """Return functions that make tensors of the results of `to_block`, by the kind of tensor."""
    return {"tensor": lambda key: _from_block(read(key))}


def _from_block(block: Block) -> tf.Tensor:
    """Make a tensor of a block."""
    return tf.constant(block_to_array(block))


def _layers_of(model: Model) -> list[str]:
    """Return the full names of the layers of a model that have weights."""
    return [str(layer.name) for layer in all_layers(model)[1:] if layer.weights]


def _dtype_of(value: Any) -> str:
    return str(tf.as_dtype(value.dtype).name)
