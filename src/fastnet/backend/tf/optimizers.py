"""Learning rates and other settings of Keras optimizers, and their state as arrays and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import known_models, name_of, optimizer_of
from fastnet.backend.tf._keras_internals import (
    build_optimizer,
    is_defined_in_keras,
    is_keras3,
    loss_scale_variables,
    schedule_of,
    slot_names,
)
from fastnet.backend.tf.weights import named_weights, short_name, unused
from fastnet.errors import shorten
from fastnet.types import Model


def get_lr(model: Model) -> float:
    optimizer = inner_optimizer(optimizer_of(model))
    # The newer optimizers of Keras 2 return the last step's value of a schedule.
    rate = schedule_of(optimizer) or optimizer.learning_rate
    return number_of(rate(optimizer.iterations) if callable(rate) else rate)


def set_lr(model: Model, lr: float, weight_decay: float | None) -> None:
    optimizer = inner_optimizer(optimizer_of(model))
    kind = type(optimizer).__name__
    if schedule_of(optimizer) is not None:
        raise ValueError(
            f"The learning rate of model '{name_of(model)}' cannot be set, because its optimizer, "
            f"{kind}, has a schedule. Make the optimizer with a number as its learning_rate."
        )
    lr = float(lr)
    old_decay = weight_decay_of(optimizer)
    if old_decay is None and weight_decay is not None:
        raise ValueError(
            f"A weight decay was given for model '{name_of(model)}', but its optimizer, {kind}, "
            "has none. Leave weight_decay out."
        )
    if old_decay is not None:
        if weight_decay is None:
            rate = get_lr(model)
            weight_decay = old_decay * lr / rate if rate else old_decay
        set_weight_decay(optimizer, weight_decay)
    optimizer.learning_rate = lr


def number_of(value: Any) -> float:
    """Convert a number, which may be in a variable, to a float."""
    return float(value.numpy() if hasattr(value, "numpy") else value)


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside of one that scales losses."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_scaling(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss, and skips steps that overflow."""
    return any(base.__name__.startswith("LossScaleOptimizer") for base in type(optimizer).__mro__)


def weight_decay_of(optimizer: Any) -> float | None:
    """Return the weight decay of an optimizer, or None."""
    decay = getattr(optimizer, "weight_decay", None)
    return None if decay is None or decay is False else number_of(decay)


def set_weight_decay(optimizer: Any, weight_decay: float) -> None:
    """Set the weight decay of an optimizer that has one."""
    if hasattr(optimizer.weight_decay, "assign"):
        optimizer.weight_decay.assign(weight_decay)
    else:
        optimizer.weight_decay = weight_decay


def make_weight_decay_variable(optimizer: Any) -> None:
    """Replace the weight decay of an optimizer by a variable, which graphs read in every step.

    An optimizer of the program may not expect a variable, so its weight decay stays.
    """
    inner = inner_optimizer(optimizer)
    if not is_defined_in_keras(inner):
        return
    decay = weight_decay_of(inner)
    if decay is not None and not hasattr(inner.weight_decay, "assign"):
        inner.weight_decay = tf.Variable(
            decay,
            trainable=False,
            dtype="float32",
            name="weight_decay",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def optimizer_state(optimizer: Any, model: Model) -> dict[str, Any]:
    """Return the settings of a model's optimizer, and its variables' values under "variables"."""
    variables = named_variables(optimizer, model)
    values = {name: np.asarray(variable.numpy()) for name, variable in variables.items()}
    return {"optimizer": _kind(optimizer), **optimizer_settings(optimizer), "variables": values}


def load_optimizer_state(optimizer: Any, model: Model, state: dict[str, Any], source: str) -> None:
    """Restore a model's optimizer; raise a ValueError if the state does not fit."""
    try:
        if state["optimizer"] != _kind(optimizer):
            raise ValueError(f"it is of {state['optimizer']}")
        if "variables" not in state:
            raise ValueError("it was saved by an older version of fastnet, without names")
        values = _with_missing_slots(optimizer, model, state["variables"])
        variables = named_variables(optimizer, model)
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        saved_shapes = {name: value.shape for name, value in values.items()}
        if saved_shapes != shapes:
            raise ValueError(
                f"it has arrays of the shapes {shorten(_differing(saved_shapes, shapes))}, where "
                f"the model's are {shorten(_differing(shapes, saved_shapes))}"
                f"{_describe_frozen(saved_shapes, shapes)}"
            )
        for name, variable in variables.items():
            variable.assign(tf.cast(values[name], variable.dtype))
        set_optimizer_settings(optimizer, state)
    except Exception as error:  # A file may hold anything under these names.
        raise ValueError(
            f"{source} does not fit the optimizer, {_kind(optimizer)}: {error}. Use the optimizer "
            "that was saved, or leave its state out."
        ) from error


def _differing(shapes: dict[str, Any], other_shapes: dict[str, Any]) -> dict[str, Any]:
    """Return the shapes that are not in `other_shapes` under the same name."""
    return {name: shape for name, shape in shapes.items() if other_shapes.get(name) != shape}


def _describe_frozen(saved: Iterable[str], own: Iterable[str]) -> str:
    """Say which weights were trainable only when one of two optimizers was made, or return ""."""
    saved_weights = {name.partition("/")[2] for name in saved if "/" in name}
    own_weights = {name.partition("/")[2] for name in own if "/" in name}
    if saved_weights.isdisjoint(own_weights) or saved_weights == own_weights:
        return ""
    differing = sorted(saved_weights ^ own_weights)
    return f", because {shorten(differing)} were trainable only when one of the two was made"


def _with_missing_slots(optimizer: Any, model: Model, values: dict[str, Any]) -> dict[str, Any]:
    """Make a legacy optimizer and a state have slots for the same weights; return the values.

    Such an optimizer makes the slots of a weight in the first update after it was unfrozen. Slots
    that the state lacks get their initial values.
    """
    if hasattr(optimizer, "build"):
        return values
    weights = named_weights(model)
    saved_keys = {name.partition("/")[2] for name in values}
    own_keys = {name.partition("/")[2] for name in named_variables(optimizer, model)}
    build_optimizer(optimizer, [weights[key] for key in weights if key in saved_keys - own_keys])
    missing = [weights[key] for key in weights if key in own_keys - saved_keys]
    if not missing:
        return values
    inner = inner_optimizer(optimizer)
    new_optimizer = type(inner).from_config(inner.get_config())
    build_optimizer(new_optimizer, missing)
    new_variables = named_variables(new_optimizer, model)
    initial = {name: variable.numpy() for name, variable in new_variables.items()}
    return {**initial, **values}


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer that are not variables of its state.

    They are the learning rate, None if a schedule decides; the weight decay, None if there is none;
    and under "numbers" and "inner_numbers" the other numbers, of the optimizer and of the one that
    it may wrap to scale losses.
    """
    inner = inner_optimizer(optimizer)
    return {
        "learning_rate": None if schedule_of(inner) is not None else number_of(inner.learning_rate),
        "weight_decay": weight_decay_of(inner),
        "numbers": _numbers_of(optimizer),
        "inner_numbers": _numbers_of(inner),
    }


def _numbers_of(optimizer: Any) -> dict[str, float | None]:
    """Return the plain numbers among an optimizer's attributes, such as its momentum, or None."""
    is_legacy = not hasattr(optimizer, "build")
    values: dict[str, Any] = optimizer.get_config() if is_legacy else vars(optimizer)
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
        if isinstance(value, (bool, int, float, np.generic, type(None)))
        and not name.startswith("_")
        and name not in _OTHER_SETTINGS
    }


# The first two are saved by themselves, and the last two depend on the program and the device.
_OTHER_SETTINGS = ("learning_rate", "weight_decay", "built", "jit_compile")


def set_optimizer_settings(optimizer: Any, settings: dict[str, Any]) -> None:
    """Restore the result of `optimizer_settings`."""
    current = optimizer_settings(optimizer)
    for name in ("learning_rate", "weight_decay"):
        value = current[name]
        if (value is None) != (settings[name] is None):
            raise ValueError(f"its {name} is {settings[name]}, where the model's is {value}")
    inner = inner_optimizer(optimizer)
    if settings["learning_rate"] is not None:
        inner.learning_rate = settings["learning_rate"]
    if settings["weight_decay"] is not None:
        set_weight_decay(inner, settings["weight_decay"])
    for level, kind in ((optimizer, "numbers"), (inner, "inner_numbers")):
        numbers = current[kind]
        for name, value in settings.get(kind, {}).items():
            if name in numbers and numbers[name] != value:
                setattr(level, name, value)


def named_variables(optimizer: Any, model: Model) -> dict[str, Any]:
    """Return the variables of an optimizer by their attributes and the weights they belong to."""
    weights = named_weights(model)
    own_ids = {id(weight) for weight in weights.values()}
    for other_model in known_models():
        if framework_of(other_model) != "tf" or not other_model.built or other_model is model:
            continue
        for key, weight in named_weights(other_model).items():
            if id(weight) not in own_ids:
                weights[f"{name_of(other_model)}: {key}"] = weight
    names: dict[int, str] = {}
    for level in (optimizer, inner_optimizer(optimizer)):
        if hasattr(level, "build") or level is inner_optimizer(optimizer):
            names = {**slot_names(level, weights), **names}
    named: dict[str, Any] = {}
    for variable in variables_of(optimizer):
        named[unused(names.get(id(variable), short_name(variable)), named)] = variable
    return named


def variables_of(optimizer: Any) -> list[Any]:
    """List the variables of an optimizer, and of the scale of its losses."""
    variables = optimizer.variables
    if callable(variables):
        variables = variables()
    return [*variables, *loss_scale_variables(optimizer)]


def _kind(optimizer: Any) -> str:
    """Return the class of an optimizer, on which the number and order of its variables depend."""
    cls = type(inner_optimizer(optimizer))
    generation = "Keras 3's" if is_keras3(optimizer) else "Keras 2's"
    legacy = "legacy " if ".legacy." in cls.__module__ else ""
    return f"{generation} {legacy}{cls.__name__}"
