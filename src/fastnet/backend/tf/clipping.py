"""Gradients of Keras variables clipped before an optimizer gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.tf.gradients import replica_count
from fastnet.backend.tf.optimizers import is_scaling

__all__ = ["Clipped", "clip"]


class Clipped:
    """What became of gradients.

    Args:
        gradients: The gradients as the optimizer wants them; None for none.
        norm: The norm of all of them together before they were clipped, unscaled, or None if nobody
            has asked for it.
        are_finite: Whether all of them were finite; True where the optimizer applies any.
    """

    def __init__(
        self, gradients: list[Any], norm: tf.Tensor | None, are_finite: tf.Tensor | bool
    ) -> None:
        self.gradients = gradients
        self.norm = norm
        self.are_finite = are_finite


def clip(
    optimizer: Any,
    gradients: Sequence[Any],
    norm: float | None,
    value: float | None,
    measure: bool,
) -> Clipped:
    """Clip gradients as `tf.clip_by_global_norm` does; of several devices what they add up to.

    Rows that a gradient of an embedding has twice count one by one, as they do there.

    Args:
        optimizer: The optimizer.
        gradients: A gradient for each variable, scaled as the optimizer wants it; None for none.
        norm: The largest norm of all of them together, above 0, or None.
        value: The largest absolute value, above 0, or None.
        measure: Whether the norm is asked for.

    Returns:
        The gradients, with their norm.
    """
    places = [place for place, one in enumerate(gradients) if one is not None]
    held = [_as_tensor(gradients[place]) for place in places]
    replicas = replica_count()
    clips = norm is not None or value is not None
    if replicas > 1:
        held = _add_up(held)
    scale = _scale_of(optimizer)
    plain = (
        held
        if scale is None
        else [_mapped(one, lambda part: part / _as(scale, part)) for one in held]
    )
    are_finite: tf.Tensor | bool = True
    passes_over = is_scaling(optimizer)
    if passes_over:
        are_finite = tf.reduce_all([_is_finite(one) for one in plain])
    total = tf.linalg.global_norm(plain) if (measure or norm is not None) and plain else None
    if total is None and measure:
        total = tf.constant(0.0)
    if not clips:
        return Clipped(list(gradients), total, are_finite)
    if norm is not None and plain:
        plain, _ = tf.clip_by_global_norm(plain, norm, use_norm=total)
    elif value is not None:
        bound = value
        plain = [_mapped(one, lambda part: tf.clip_by_value(part, -bound, bound)) for one in plain]
    # what has overflown must not look as if it had not
    share = (1.0 if scale is None else scale) / replicas
    if passes_over:
        share = tf.where(are_finite, share, float("nan"))
    if passes_over or scale is not None or replicas > 1:
        plain = [_mapped(one, lambda part: part * _as(share, part)) for one in plain]
    made = list(gradients)
    for place, one in zip(places, plain, strict=True):
        made[place] = one
    return Clipped(made, total, are_finite)


def _scale_of(optimizer: Any) -> tf.Tensor | None:
    """Return what gradients are scaled by that an optimizer scales down itself, or None."""
    if hasattr(optimizer, "get_unscaled_gradients") or not hasattr(optimizer, "scale_loss"):
        return None
    if not is_scaling(optimizer) and optimizer.loss_scale_factor is None:
        return None
    return tf.convert_to_tensor(optimizer.scale_loss(tf.ones(())))


def _as_tensor(gradient: Any) -> Any:
    return gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def _add_up(gradients: list[Any]) -> list[Any]:
    """Add up the gradients of all devices; each row of those of some rows is brought along."""
    if not gradients:
        return gradients
    dense = [tf.convert_to_tensor(one) for one in gradients]
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, dense))


def _mapped(gradient: Any, function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _is_finite(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))


def _as(number: Any, part: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, part.dtype)
