"""Gradients of TensorFlow tensors, and the updates they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import tensorflow as tf

from fastnet.backend.facts import name_of
from fastnet.backend.scheduled import nowhere_to_defer, optimizer_of
from fastnet.backend.tf._internals import is_recording
from fastnet.backend.tf.optimizers import is_scaling
from fastnet.errors import add_note

__all__ = [
    "DeferredUpdate",
    "agree_on_overflow",
    "apply_gradients",
    "get_gradient",
    "no_tape",
    "paused",
    "replica_count",
    "scale_gradients",
    "trainable",
    "update_model",
    "watch",
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
        raise no_tape()
    if higher_order:
        return tape.gradient(target, sources)
    with paused(tape):
        return tape.gradient(target, sources)


def paused(tape: tf.GradientTape | None) -> AbstractContextManager[Any]:
    """Keep a tape from recording for a while.

    Args:
        tape: The tape; one that does not record, or None, is left as it is.

    Returns:
        A context manager.
    """
    recording = is_recording(tape)
    if tape is None or recording is False:
        return nullcontext()
    stopped: AbstractContextManager[Any] = tape.stop_recording()
    return stopped if recording else _if_it_can_be(stopped)


@contextmanager
def _if_it_can_be(stopped: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context that a tape which does not record refuses."""
    with ExitStack() as stack:
        with suppress(RuntimeError, ValueError):
            stack.enter_context(stopped)
        yield


def no_tape() -> ValueError:
    """Word the error of a gradient without a tape."""
    return ValueError(
        "A gradient in TensorFlow needs the tape that recorded its target, but got None. Pass "
        "state['tape'], which a network provides if any of its ops takes gradients."
    )


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
    gradients = scale_gradients(optimizer_of(model), gradients)
    if not defer:
        apply_gradients(model, gradients, model.trainable_variables)
        return
    if deferred is None:
        raise nowhere_to_defer(model)
    deferred.setdefault(name_of(model), []).append(
        DeferredUpdate(model, gradients, model.trainable_variables)
    )


def apply_gradients(
    model: Any, gradients: Sequence[tf.Tensor | None], variables: Sequence[Any]
) -> None:
    """Let a model's optimizer update its variables.

    Args:
        model: The model.
        gradients: A gradient for each variable, in order, scaled as its optimizer wants it; None
            for none.
        variables: The variables.
    """
    optimizer = optimizer_of(model)
    if replica_count() > 1:
        gradients = agree_on_overflow(optimizer, gradients)
    try:
        optimizer.apply_gradients(zip(gradients, variables, strict=False))
    except Exception as error:
        add_note(error, f"Raised by the update of model '{name_of(model)}'.")
        raise


def agree_on_overflow(optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """Spoil the gradients of every device where those of one have overflown.

    Args:
        optimizer: The optimizer. One that looks for overflow in all of them needs nothing done.
        gradients: The gradients of one device, in a step of several; None for none.

    Returns:
        Gradients for the optimizer.
    """
    sees_first_only = is_scaling(optimizer) and not hasattr(optimizer, "get_unscaled_gradients")
    if not sees_first_only:
        return gradients

    def is_overflown(gradient: Any) -> tf.Tensor:
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        return tf.cast(tf.logical_not(tf.reduce_all(tf.math.is_finite(values))), tf.float32)

    overflown = tf.add_n([is_overflown(one) for one in gradients if one is not None])
    context = tf.distribute.get_replica_context()
    overflown = context.all_reduce(tf.distribute.ReduceOp.SUM, overflown)
    factor = tf.where(overflown > 0, float("nan"), 1.0)

    def spoil(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                gradient.values * tf.cast(factor, gradient.values.dtype),
                gradient.indices,
                gradient.dense_shape,
            )
        return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)

    return [spoil(gradient) for gradient in gradients]


def trainable(model: Any) -> list[Any]:
    """List the variables of a model that are trained, in order."""
    return list(model.trainable_variables)


def scale_gradients(optimizer: Any, gradients: Sequence[tf.Tensor | None]) -> list[Any]:
    """Scale gradients of a loss that was not scaled, where the optimizer will scale them down.

    Args:
        optimizer: The optimizer.
        gradients: The gradients; None for none.

    Returns:
        The gradients as the optimizer's `apply_gradients` wants them.
    """
    if hasattr(optimizer, "get_unscaled_gradients") or not hasattr(optimizer, "scale_loss"):
        return list(gradients)
    return [
        None if one is None else optimizer.scale_loss(tf.convert_to_tensor(one))
        for one in gradients
    ]


def replica_count() -> int:
    """Count the replicas that a step runs on, whose gradients are added up."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


class DeferredUpdate:
    """An update that waits for the last op.

    Args:
        model: The model.
        gradients: A gradient for each of its trainable variables, scaled as its optimizer wants
            it; None for none.
        variables: These variables.
        apply: What lets the model's optimizer update them.
    """

    def __init__(
        self,
        model: Any,
        gradients: Sequence[tf.Tensor | None],
        variables: Sequence[Any],
        apply: Callable[..., None] = apply_gradients,
    ) -> None:
        self._model = model
        self._gradients = gradients
        self._variables = variables
        self._apply = apply

    def __call__(self) -> None:
        """Update the model."""
        self._apply(self._model, self._gradients, self._variables)


def watch(tensor: tf.Tensor, tape: tf.GradientTape | None) -> tf.Tensor:
    """Let a tape record what is made of a tensor.

    Args:
        tensor: The tensor.
        tape: The tape.

    Returns:
        The tensor.

    Raises:
        ValueError: If there is no tape.
    """
    if tape is None:
        raise ValueError(
            "Watching a TensorFlow tensor needs a tape, but got None. Pass state['tape'], which a "
            "network provides if any of its ops takes gradients."
        )
    tape.watch(tensor)
    return tensor
