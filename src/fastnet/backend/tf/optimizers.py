"""Learning rates of Keras optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.model_metadata import name_of, optimizer_of
from fastnet.backend.tf._keras_internals import schedule_of

__all__ = [
    "get_lr",
    "has_schedule",
    "inner_optimizer",
    "is_scaling",
    "let_decay_change",
    "number_of",
    "set_lr",
    "set_weight_decay",
    "weight_decay_of",
]


def get_lr(model: Any) -> float:
    optimizer = inner_optimizer(optimizer_of(model))
    # The newer optimizers of Keras 2 return the last step's value of a schedule.
    rate = schedule_of(optimizer) or optimizer.learning_rate
    return number_of(rate(optimizer.iterations) if callable(rate) else rate)


def set_lr(model: Any, lr: float, weight_decay: float | None) -> None:
    optimizer = inner_optimizer(optimizer_of(model))
    kind = type(optimizer).__name__
    if has_schedule(optimizer):
        raise ValueError(
            f"The learning rate of model '{name_of(model)}' cannot be set, because its optimizer, "
            f"{kind}, has a schedule. Make the optimizer with a number as its learning_rate."
        )
    lr = float(lr)
    before = weight_decay_of(optimizer)
    if before is None and weight_decay is not None:
        raise ValueError(
            f"A weight decay was given for model '{name_of(model)}', but its optimizer, {kind}, "
            "has none. Leave weight_decay out."
        )
    if before is not None:
        if weight_decay is None:
            rate = get_lr(model)
            weight_decay = before * lr / rate if rate else before
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


def has_schedule(optimizer: Any) -> bool:
    """Return whether an optimizer's learning rate follows a schedule."""
    return schedule_of(optimizer) is not None or callable(optimizer.learning_rate)


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


def let_decay_change(optimizer: Any) -> None:
    """Replace the weight decay of an optimizer by a variable, which graphs read in every step."""
    inner = inner_optimizer(optimizer)
    decay = weight_decay_of(inner)
    if decay is not None and not hasattr(inner.weight_decay, "assign"):
        inner.weight_decay = tf.Variable(
            decay,
            trainable=False,
            dtype="float32",
            name="weight_decay",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
