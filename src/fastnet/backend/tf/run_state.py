"""What a run in TensorFlow goes on from: models, their optimizers, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.archive import Block
from fastnet.backend.model_metadata import name_of, optimizers_of
from fastnet.backend.tf._keras_internals import has_unreadable_seeds, seed_states, shared_seeds
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizer_files import (
    array_of,
    complaint_about,
    facts_of,
    kept_optimizer,
    load_state,
    variables_of,
)
from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.weights import kept_variables
from fastnet.backend.tree import array_from
from fastnet.util.warnings import warn

__all__ = [
    "check_model",
    "check_random",
    "give",
    "kept_model",
    "kept_random",
    "load_model",
    "load_random",
    "make",
    "random_state",
    "state_of_model",
]

_WEIGHTS, _OPTIMIZERS = "weights", "optimizers"
_GLOBAL, _KERAS, _LAYERS = "global", "keras", "layers"
# a layer draws nothing where all of those that it has are 0
_STRENGTHS = ("dropout", "rate", "recurrent_dropout", "stddev")


def state_of_model(model: Any) -> dict[str, Any]:
    """Return what a model and its optimizers remember.

    Args:
        model: The model.

    Raises:
        ValueError: If it has no variables yet.
    """
    _require_variables(model, "saved")
    return {
        _WEIGHTS: [[_name_of(one), np.asarray(one.numpy())] for one in model.weights],
        _OPTIMIZERS: [
            {**facts_of(one), "values": [array_of(each) for each in variables_of(one)]}
            for one in optimizers_of(model)
        ],
    }


def check_model(model: Any, state: Any, source: str) -> dict[str, Any]:
    """Check that a state is that of a model and of its optimizers.

    Args:
        model: The model.
        state: What is said to be its state.
        source: Where that is from, for the error's text.

    Returns:
        The state, for `load_model`.

    Raises:
        ValueError: If it is not.
    """
    _require_variables(model, "loaded")
    own = [(_name_of(one), tuple(one.shape), _dtype_of(one)) for one in model.weights]
    saved = [(name, value.shape, value.dtype.name) for name, value in state[_WEIGHTS]]
    if own != saved:
        differing = [both for both in zip(saved, own, strict=False) if both[0] != both[1]]
        where = "has {} where the model has {}".format(*differing[0]) if differing else "differs"
        raise ValueError(
            f"{source} is of another model than '{name_of(model)}': it has {len(saved)} weights, "
            f"where the model has {len(own)}, and {where}. Load it into the model that it was "
            "saved from."
        )
    optimizers, states = optimizers_of(model), state[_OPTIMIZERS]
    if len(optimizers) != len(states):
        raise ValueError(
            f"{source} has {len(states)} optimizers of model '{name_of(model)}', which has "
            f"{len(optimizers)}. Build the model with those that were saved."
        )
    for optimizer, one in zip(optimizers, states, strict=True):
        prepare_optimizer(optimizer, model)
        complaint = complaint_about(one, optimizer)
        if complaint:
            raise ValueError(
                f"{source} is not of an optimizer of model '{name_of(model)}', "
                f"{type(optimizer).__name__}: {complaint}. Build the model with the optimizer "
                "that was saved."
            )
    checked: dict[str, Any] = state
    return checked


def load_model(model: Any, state: dict[str, Any], source: str) -> None:
    """Restore the state of a model and its optimizers.

    Args:
        model: The model.
        state: What `check_model` gave for it.
        source: Not used.
    """
    for optimizer, one in zip(optimizers_of(model), state[_OPTIMIZERS], strict=True):
        load_state(optimizer, one)
    for variable, (_, value) in zip(model.weights, state[_WEIGHTS], strict=True):
        variable.assign(value)


@contextmanager
def kept_model(model: Any) -> Iterator[None]:
    """Restore the state of a model and its optimizers if something fails meanwhile.

    Args:
        model: The model.
    """
    with ExitStack() as kept:
        kept.enter_context(kept_variables(model.weights))
        for optimizer in optimizers_of(model):
            kept.enter_context(kept_optimizer(optimizer))
        yield


def random_state(models: list[Any]) -> dict[str, Any]:
    """Return the states of TensorFlow's global generator, and of those of Keras and of layers.

    Args:
        models: The models whose layers count.
    """
    for name in sorted({name for model in models for name in _unreadable(model)}):
        warn(
            f"The layer '{name}' draws its random numbers in a way whose state TensorFlow keeps to "
            "itself, so that a run that goes on from here draws others. Call tf.keras.backend."
            "experimental.enable_tf_random_generator() before the model is made.",
        )
    shared, is_all = shared_seeds()
    if models and not is_all:
        warn(
            "The generator that Keras uses where it is given no seed cannot be read in this "
            "version of Keras, so that what draws from it draws other numbers in a run that goes "
            "on from here. Give layers and keras.random a seed or a SeedGenerator.",
        )
    return {
        _GLOBAL: np.asarray(tf.random.get_global_generator().state.numpy()),
        _KERAS: None if shared is None else np.asarray(shared.numpy()),
        _LAYERS: [np.asarray(one.numpy()) for one in _generators(models)],
    }


def check_random(models: list[Any], state: Any, source: str) -> None:
    """Check that states are such of these generators.

    Args:
        models: The models whose layers count.
        state: What is said to be them.
        source: Where they are from, for the error's text.

    Raises:
        ValueError: If they are not.
    """
    own = [tf.random.get_global_generator().state, *_generators(models)]
    saved = [state[_GLOBAL], *state[_LAYERS]]
    shared = _shared_by_keras()
    if shared is not None and state[_KERAS] is not None:
        own.append(shared)
        saved.append(state[_KERAS])
    kinds, own_kinds = (
        [(tuple(one.shape), _dtype_of(one)) for one in each] for each in (saved, own)
    )
    if kinds != own_kinds:
        raise ValueError(
            f"{source} has states of random numbers of the shapes and types {kinds}, where those "
            f"of the program are {own_kinds}. Load it in the program that it was saved from."
        )


def load_random(models: list[Any], state: dict[str, Any]) -> None:
    """Restore the states of these generators.

    Args:
        models: The models whose layers count.
        state: What `random_state` gave.
    """
    tf.random.get_global_generator().state.assign(state[_GLOBAL])
    shared = _shared_by_keras()
    if shared is not None and state[_KERAS] is not None:
        shared.assign(state[_KERAS])
    for variable, value in zip(_generators(models), state[_LAYERS], strict=True):
        variable.assign(value)


@contextmanager
def kept_random(models: list[Any]) -> Iterator[None]:
    """Restore the states of these generators if something fails meanwhile.

    Args:
        models: The models whose layers count.
    """
    shared = _shared_by_keras()
    own = [tf.random.get_global_generator().state, *_generators(models)]
    with kept_variables(own if shared is None else [*own, shared]):
        yield


def give(value: Any) -> Block | None:
    """Return a tensor as it is in a file.

    Args:
        value: The tensor or variable, or anything else.

    Returns:
        The tensor's type, shape and bytes; None for anything else.
    """
    if not (tf.is_tensor(value) or isinstance(value, tf.Variable)) or not hasattr(value, "numpy"):
        return None
    array = np.asarray(value.numpy())
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.dtype != object else b""
    return Block(array.dtype.name, array.shape, data)


def make(block: Block) -> tf.Tensor:
    """Make a tensor.

    Args:
        block: What a file has of it; without bytes for one of zeros.

    Returns:
        The tensor.
    """
    return tf.constant(array_from(block))


def _require_variables(model: Any, what: str) -> None:
    if not model.built:
        raise ValueError(
            f"Model '{name_of(model)}' cannot be {what}: it has no variables before it knows the "
            "shape of its input. Give it an Input, or call its build(shape), in model_fn."
        )


def _name_of(variable: Any) -> str:
    """Return the last part of a variable's name: Keras numbers the others as a process goes on."""
    return str(variable.name).rpartition("/")[2].partition(":")[0]


def _dtype_of(value: Any) -> str:
    return str(tf.as_dtype(value.dtype).name)


def _generators(models: list[Any]) -> list[Any]:
    """List the states of the generators that layers have of their own."""
    found: dict[int, Any] = {}
    for model in models:
        for layer in all_layers(model):
            for state in seed_states(layer):
                found.setdefault(id(state), state)
    return list(found.values())


def _unreadable(model: Any) -> list[str]:
    """Name the layers of Keras 2 whose generators cannot be read."""
    found = []
    for layer in all_layers(model):
        if has_unreadable_seeds(layer):
            strengths = [getattr(layer, name) for name in _STRENGTHS if hasattr(layer, name)]
            if any(strengths) or not strengths:
                found.append(str(layer.name))
    return found


def _shared_by_keras() -> Any:
    """Find the state of the generator that Keras 3 uses where it is given no seed."""
    return shared_seeds()[0]
