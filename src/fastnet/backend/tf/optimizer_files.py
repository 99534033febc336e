"""The state of Keras optimizers, in files of arrays that execute nothing when they are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.tf.generation import is_keras3
from fastnet.backend.tf.optimizers import (
    has_schedule,
    inner_optimizer,
    set_weight_decay,
    weight_decay_of,
)
from fastnet.backend.tf.setup import prepare_optimizer

__all__ = ["load_state", "read_state", "write_state"]

_FACTS = "facts"


def write_state(optimizer: Any, path: str) -> None:
    """Write an optimizer's state.

    Args:
        optimizer: The optimizer.
        path: The file, which ends with ``.npz``.
    """
    inner = inner_optimizer(optimizer)
    facts = {
        "optimizer": _kind(optimizer),
        "learning_rate": None if has_schedule(inner) else float(inner.learning_rate),
        "weight_decay": weight_decay_of(inner),
    }
    arrays = {str(place): _array(each) for place, each in enumerate(_variables(optimizer))}
    arrays[_FACTS] = np.array(json.dumps(facts))
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_state(optimizer: Any, model: Any, path: str) -> dict[str, Any]:
    """Read an optimizer's state, and check that it fits.

    Args:
        optimizer: The optimizer that it is for.
        model: The model that the optimizer updates.
        path: The file.

    Returns:
        The state, for `load_state`.

    Raises:
        ValueError: If the file is damaged, or of another optimizer.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(str(file[_FACTS]))
            values = [file[str(place)] for place in range(len(file.files) - 1)]
        kind = facts["optimizer"]
    except Exception as error:  # a damaged file fails in a dozen ways
        raise ValueError(
            f"The optimizer file '{path}' is damaged, or was not written by fastnet: it cannot be "
            f"read ({error!r}). Save it anew with save_model(model, save_dir, save_optimizer=True)."
        ) from error
    prepare_optimizer(optimizer, model)
    shapes = [tuple(each.shape) for each in _variables(optimizer)]
    saved = [value.shape for value in values]
    complaint = None
    if kind != _kind(optimizer):
        complaint = f"it is of {kind}"
    elif saved != shapes:
        complaint = f"it has arrays of the shapes {saved} where the model's are {shapes}"
    if complaint:
        raise ValueError(
            f"The optimizer file '{path}' is not of the model's optimizer, {_kind(optimizer)}: "
            f"{complaint}. Leave load_optimizer out, or give the model the optimizer that was "
            "saved."
        )
    return {**facts, "values": values}


def load_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Give an optimizer its state back.

    Args:
        optimizer: The optimizer.
        state: What `read_state` gave for it.
    """
    for variable, value in zip(_variables(optimizer), state["values"], strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    inner = inner_optimizer(optimizer)
    if state["learning_rate"] is not None and not has_schedule(inner):
        inner.learning_rate = state["learning_rate"]
    if state["weight_decay"] is not None and weight_decay_of(inner) is not None:
        set_weight_decay(inner, state["weight_decay"])


def _kind(optimizer: Any) -> str:
    """Name what decides how many variables an optimizer has, and in which order."""
    cls = type(inner_optimizer(optimizer))
    age = "Keras 3's" if is_keras3(optimizer) else "Keras 2's"
    return f"{age} {'legacy ' if '.legacy.' in cls.__module__ else ''}{cls.__name__}"


def _variables(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _array(variable: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.asarray(variable.numpy())
    # numpy itself has no bfloat16, and could only pickle it
    return array.astype("float32") if array.dtype.kind == "V" else array
