"""Gradients of TensorFlow tensors, and the updates they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fastnet.errors import add_note

__all__ = [
    "DeferredUpdate",
    "apply_gradients",
    "get_gradient",
    "is_scaling",
    "optimizer_of",
    "replica_count",
    "scale_loss",
    "unscale_gradients",
    "update_model",
]


def get_gradient(
    target: tf.Tensor,
    sources: Sequence[Any] | Any,
    higher_order: bool = False,
    tape: tf.GradientTape | None = None,
    retain_graph: bool = True,
) -> Any:
    """Differentiate.

    Args:
        target: What to differentiate; of any shape, whose elements count alike.
        sources: What to differentiate by: a tensor or variable, or several.
        higher_order: Whether the gradients can be differentiated in turn.
        tape: What recorded the target.
        retain_graph: Not used; other frameworks need it.

    Returns:
        A gradient of the shape of its source, or a list of them, with None for a source that has
        no part in the target.

    Raises:
        ValueError: If there is no tape.
    """
    if tape is None:
        raise ValueError(
            "A gradient in TensorFlow needs the tape that recorded its target, but got None. Pass "
            "state['tape'], which is there in a network some of whose ops take gradients."
        )
    if higher_order:
        return tape.gradient(target, sources)
    with tape.stop_recording():
        return tape.gradient(target, sources)


def update_model(
    model: Any,
    gradients: Sequence[tf.Tensor | None],
    defer: bool = False,
    deferred: dict[str, list[Callable[[], None]]] | None = None,
) -> None:
    """Update a model's weights.

    Args:
        model: A model from `fastnet.build`.
        gradients: A gradient for each of its trainable variables, in order; None for none.
        defer: Whether to put the update off.
        deferred: Where to put it: lists of functions by the model's name.

    Raises:
        AssertionError: If the model has no `current_optimizer`.
        ValueError: If the model's current optimizer is None, or there is nowhere to defer to.
    """
    optimizer_of(model)
    if not defer:
        apply_gradients(model, gradients)
        return
    if deferred is None:
        raise ValueError(
            f"An update of model '{model_name(model)}' is to be deferred, but no dict to defer it "
            "into was given. Pass `deferred`, or defer=False."
        )
    deferred.setdefault(model_name(model), []).append(DeferredUpdate(model, gradients))


def apply_gradients(model: Any, gradients: Sequence[tf.Tensor | None]) -> None:
    """Let a model's optimizer update its trainable variables.

    Args:
        model: The model.
        gradients: A gradient for each variable, in order; None for none.
    """
    optimizer = optimizer_of(model)
    try:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=False))
    except Exception as error:
        add_note(error, f"Raised by the update of model '{model_name(model)}'.")
        raise


def optimizer_of(model: Any) -> Any:
    """Look up the optimizer in force.

    Args:
        model: A model from `fastnet.build`.

    Returns:
        Its current optimizer.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If it has no optimizer now.
    """
    if not hasattr(model, "current_optimizer"):
        raise AssertionError(
            f"{type(model).__name__} has no current_optimizer. Make the model with fastnet.build."
        )
    if model.current_optimizer is None:
        raise ValueError(
            f"Model '{model_name(model)}' is to be updated, but it has no optimizer in this epoch. "
            "Give fastnet.build an optimizer_fn (a scheduler's None means none), or let no "
            "UpdateOp run."
        )
    return model.current_optimizer


def model_name(model: Any) -> str:
    """Return the name that `build` gave a model, or its class's."""
    return str(getattr(model, "model_name", type(model).__name__))


def is_scaling(optimizer: Any) -> bool:
    """Tell whether an optimizer wants the loss scaled before its gradients are taken."""
    return hasattr(optimizer, "get_scaled_loss") or "LossScale" in type(optimizer).__name__


def scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """Scale a loss up for an optimizer, so that small gradients do not vanish in half precision.

    Args:
        optimizer: An optimizer that scales.
        loss: The loss.

    Returns:
        The scaled loss.
    """
    scale = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss
    return scale(loss)


def unscale_gradients(optimizer: Any, gradients: Sequence[tf.Tensor | None]) -> Any:
    """Scale gradients down again, where the optimizer does not do so itself.

    Args:
        optimizer: An optimizer that scales.
        gradients: Gradients of a scaled loss.

    Returns:
        The gradients as the optimizer's `apply_gradients` wants them.
    """
    unscale = getattr(optimizer, "get_unscaled_gradients", None)
    return gradients if unscale is None else unscale(gradients)


def replica_count() -> int:
    """Count the replicas that a step runs on, whose gradients are added up."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


class DeferredUpdate:
    """An update that waits for the last op.

    Args:
        model: The model.
        gradients: A gradient for each of its trainable variables; None for none.
    """

    def __init__(self, model: Any, gradients: Sequence[tf.Tensor | None]) -> None:
        self._model = model
        self._gradients = gradients

    def __call__(self) -> None:
        """Update the model."""
        apply_gradients(self._model, self._gradients)
