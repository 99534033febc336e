"""Gradients of TensorFlow tensors, and the updates that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import tensorflow as tf

from fastnet.backend.model_metadata import name_of, optimizer_of
from fastnet.backend.tf.optimizers import is_scaling
from fastnet.errors import add_note, require_one_gradient_each
from fastnet.types import Model, State


def get_gradient(
    target: tf.Tensor,
    sources: Sequence[Any] | Any,
    higher_order: bool = False,
    tape: tf.GradientTape | None = None,
    retain_graph: bool = True,
) -> Any:
    if tape is None:
        raise no_tape()
    with nullcontext() if higher_order else paused(tape):
        return tape.gradient(target, sources)


def compute_gradients(
    target: tf.Tensor,
    sources: Sequence[Any] | Any,
    higher_order: bool,
    tape: tf.GradientTape | None,
    retain_graph: bool,
) -> Any:
    """Differentiate for an op; average the gradients by a list of weights over the replicas."""
    gradients = get_gradient(target, sources, higher_order, tape)
    if not isinstance(sources, list) or replica_count() == 1:
        return gradients
    present = [gradient for gradient in gradients if gradient is not None]
    context = tf.distribute.get_replica_context()
    if not present or context is None:
        return gradients
    # Averaged here, so that an op which clips the gradients measures those of the whole batch.
    with nullcontext() if higher_order else paused(tape):
        averages = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, present))
    return [None if gradient is None else next(averages) for gradient in gradients]


def compute_differentiable(target: tf.Tensor, sources: Sequence[Any] | Any, state: State) -> Any:
    """Compute gradients that the step's tape can differentiate again."""
    return compute_gradients(target, sources, True, state.get("tape"), True)


def watch(tensor: tf.Tensor, tape: tf.GradientTape | None) -> tf.Tensor:
    if tape is None:
        raise no_tape()
    tape.watch(tensor)
    return tensor


@contextmanager
def paused(tape: tf.GradientTape | None) -> Iterator[None]:
    """Stop a tape from recording in this context; it may be None, or not record anyway."""
    with ExitStack() as stack:
        if tape is not None:
            with suppress(RuntimeError, ValueError):  # It does not record.
                stack.enter_context(tape.stop_recording())
        yield


def no_tape() -> ValueError:
    """Return the error for a gradient without a tape."""
    return ValueError(
        "A gradient in TensorFlow needs a tape that records its target, but got None. Pass "
        "state['tape'], which a network provides if any of its ops takes gradients."
    )


def update_model(
    model: Model,
    gradients: Sequence[tf.Tensor | None],
    defer: bool,
    deferred: dict[str, list[Callable[[], None]]],
) -> None:
    require_one_gradient_each(gradients, len(model.trainable_variables), name_of(model))

    def update() -> None:
        # Updates that were deferred earlier may change the scale.
        scaled = scale_gradients(optimizer_of(model), gradients)
        apply_gradients(model, scaled, model.trainable_variables)

    optimizer_of(model)  # Raises if there is none.
    if defer:
        deferred.setdefault(name_of(model), []).append(update)
    else:
        update()


def apply_gradients(
    model: Model, gradients: Sequence[tf.Tensor | None], variables: Sequence[Any]
) -> None:
    """Let a model's optimizer update variables by gradients that are scaled as it expects."""
    optimizer = optimizer_of(model)
    if replica_count() > 1:
        gradients = _agree_on_overflow(optimizer, gradients)
    try:
        optimizer.apply_gradients(zip(gradients, variables, strict=False))
    except Exception as error:
        add_note(error, f"Raised by the update of model '{name_of(model)}'.")
        raise


def _agree_on_overflow(optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """Make the gradients of all replicas NaN where those of one have overflowed.

    Keras 3's optimizer decides in each replica by its own gradients whether to skip the step.
    """
    if not is_scaling(optimizer) or hasattr(optimizer, "get_unscaled_gradients"):
        return gradients
    overflown = tf.cast(tf.logical_not(all_finite(gradients)), tf.float32)
    context = tf.distribute.get_replica_context()
    overflown = context.all_reduce(tf.distribute.ReduceOp.SUM, overflown)
    return multiply_gradients(gradients, tf.where(overflown > 0, float("nan"), 1.0))


def all_finite(gradients: Sequence[Any]) -> tf.Tensor:
    """Return whether all values of gradients are finite."""
    tensors = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
        if gradient is not None
    ]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])


def multiply_gradients(gradients: Sequence[Any], factor: tf.Tensor) -> list[Any]:
    """Multiply the values of gradients."""
    return [
        map_values(gradient, lambda values: values * tf.cast(factor, values.dtype))
        for gradient in gradients
    ]


def map_values(gradient: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the values of a gradient, which may be sparse; None stays None."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)


def inner_scale_of(optimizer: Any) -> tf.Tensor | None:
    """Return the scale of gradients that an optimizer itself unscales, or None."""
    if hasattr(optimizer, "get_unscaled_gradients") or not hasattr(optimizer, "scale_loss"):
        return None
    if not is_scaling(optimizer) and optimizer.loss_scale_factor is None:
        return None
    return tf.convert_to_tensor(optimizer.scale_loss(tf.ones(())))


def scale_gradients(optimizer: Any, gradients: Sequence[tf.Tensor | None]) -> list[Any]:
    """Scale gradients of an unscaled loss, if the optimizer will unscale them."""
    scale = inner_scale_of(optimizer)
    return list(gradients) if scale is None else multiply_gradients(gradients, scale)


def trainable_parameters(model: Model) -> list[Any]:
    """List the trainable variables of a model, in order."""
    return list(model.trainable_variables)


def named_trainable_parameters(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the trainable variables of a layer or a model, or a variable, with their names."""
    variables = []
    if isinstance(value, tf.Variable) or hasattr(type(value), "__tf_tensor__"):
        variables = [value]
    elif hasattr(type(value), "trainable_variables"):
        # Keras 2 does not know the variables of an unbuilt model.
        with suppress(TypeError, ValueError):
            variables = list(value.trainable_variables)
    for variable in variables:
        if getattr(variable, "trainable", False):
            # A variable of Keras 3 has a tf.Variable inside; `value` of a tf.Variable is a method.
            inner = getattr(variable, "value", variable)
            tf_variable = inner if isinstance(inner, tf.Variable) else variable
            yield ("" if variable is value else str(variable.name)), tf_variable


def replica_count() -> int:
    """Return the number of replicas that a step runs on, whose gradients are summed."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)
