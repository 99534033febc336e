"""The state of Keras optimizers and their loss scales, as arrays and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.tf._keras_internals import loss_scale_variables
from fastnet.backend.tf.keras_version import is_keras3
from fastnet.backend.tf.optimizers import (
    has_schedule,
    inner_optimizer,
    number_of,
    set_weight_decay,
    weight_decay_of,
)

__all__ = [
    "load_optimizer_state",
    "optimizer_settings",
    "optimizer_state",
    "set_optimizer_settings",
    "variables_of",
]


def optimizer_state(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer, and the values of its variables as "values"."""
    values = [np.asarray(variable.numpy()) for variable in variables_of(optimizer)]
    return {"optimizer": _kind(optimizer), **optimizer_settings(optimizer), "values": values}


def load_optimizer_state(optimizer: Any, state: dict[str, Any], source: str) -> None:
    """Restore an optimizer with its variables; raise a ValueError if the state does not fit."""
    try:
        if state["optimizer"] != _kind(optimizer):
            raise ValueError(f"it is of {state['optimizer']}")
        variables, values = variables_of(optimizer), state["values"]
        shapes, saved = [tuple(one.shape) for one in variables], [one.shape for one in values]
        if saved != shapes:
            raise ValueError(f"it has arrays of the shapes {saved}, where the model's are {shapes}")
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        set_optimizer_settings(optimizer, state)
    except Exception as error:  # A file may hold anything under these names.
        raise ValueError(
            f"{source} does not fit the optimizer, {_kind(optimizer)}: {error}. Use the optimizer "
            "that was saved, or leave its state out."
        ) from error


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """Return the learning rate, None if a schedule decides, and the weight decay, None if none."""
    inner = inner_optimizer(optimizer)
    return {
        "learning_rate": None if has_schedule(inner) else number_of(inner.learning_rate),
        "weight_decay": weight_decay_of(inner),
    }


def set_optimizer_settings(optimizer: Any, settings: dict[str, Any]) -> None:
    """Restore the result of `optimizer_settings`."""
    given = optimizer_settings(optimizer)
    for name, value in given.items():
        if (value is None) != (settings[name] is None):
            raise ValueError(f"its {name} is {settings[name]}, where the model's is {value}")
    inner = inner_optimizer(optimizer)
    if settings["learning_rate"] is not None:
        inner.learning_rate = settings["learning_rate"]
    if settings["weight_decay"] is not None:
        set_weight_decay(inner, settings["weight_decay"])


def variables_of(optimizer: Any) -> list[Any]:
    """List the variables of an optimizer, and of the scale of its losses."""
    variables = optimizer.variables
    own = variables() if callable(variables) else variables
    return [*own, *loss_scale_variables(optimizer)]


def _kind(optimizer: Any) -> str:
    """Name what decides how many variables an optimizer has, and in which order."""
    cls = type(inner_optimizer(optimizer))
    generation = "Keras 3's" if is_keras3(optimizer) else "Keras 2's"
    return f"{generation} {'legacy ' if '.legacy.' in cls.__module__ else ''}{cls.__name__}"
