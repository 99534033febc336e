"""Sums, means, extremes and percentiles over axes of TensorFlow tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.tf.tensors import get_shape

__all__ = [
    "extremes",
    "mean_of",
    "percentile",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_std",
    "reduce_sum",
    "settled_axes",
    "sum_of",
]

# The framework's own functions: like those below, but they must not be called with an empty list
# of axes.
mean_of, sum_of = tf.reduce_mean, tf.reduce_sum


def settled_axes(axes: Sequence[int]) -> list[int]:
    """Make of several axes what `sum_of` takes, for all steps."""
    # no tensor, which a graph adds up by in another order
    return list(axes)


def reduce_mean(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Average a tensor over some axes, or over all of them."""
    return tf.reduce_mean(tensor, _axis(axis), keepdims)


def reduce_sum(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Add a tensor up over some axes, or over all of them."""
    return tf.reduce_sum(tensor, _axis(axis), keepdims)


def reduce_std(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Find the standard deviation over some axes, or over all of them."""
    return tf.math.reduce_std(tensor, axis=axis, keepdims=keepdims)


def reduce_max(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Find the largest values over some axes, or over all of them."""
    return tf.reduce_max(tensor, _axis(axis), keepdims)


def reduce_min(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Find the smallest values over some axes, or over all of them."""
    return tf.reduce_min(tensor, _axis(axis), keepdims)


def extremes(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Find the smallest and the largest value."""
    return tf.reduce_min(tensor), tf.reduce_max(tensor)


def _axis(axis: Sequence[int] | None) -> Any:
    # one axis by itself need not become a tensor
    return axis[0] if axis is not None and len(axis) == 1 else axis


def percentile(
    tensor: tf.Tensor, percentiles: Sequence[float], axis: Sequence[int] | None, keepdims: bool
) -> tf.Tensor:
    """Find values below which given parts of a tensor lie, stacked along a new first axis."""
    lengths = get_shape(tensor)
    count = len(lengths)
    axes = list(range(count)) if axis is None else [each % count for each in axis]
    kept = [each for each in range(count) if each not in axes]
    rows = tf.transpose(tensor, kept + axes)
    rows = tf.sort(tf.reshape(rows, [*[lengths[each] for each in kept], -1]), axis=-1)
    last = get_shape(rows)[-1] - 1
    found = [tf.gather(rows, _place(each, last), axis=-1) for each in percentiles]
    if tensor.dtype.is_floating:
        # which a sort puts nowhere in particular
        lost = tf.reduce_any(tf.math.is_nan(rows), axis=-1)
        found = [tf.where(lost, tf.cast(math.nan, tensor.dtype), each) for each in found]
    if keepdims:
        shape = [1 if each in axes else lengths[each] for each in range(count)]
        found = [tf.reshape(each, shape) for each in found]
    return tf.stack(found)


def _place(percent: float, last: int | tf.Tensor) -> Any:
    """Find the place of a percentile in order, or the one below."""
    if isinstance(last, int):
        return math.floor(percent / 100 * last)
    return tf.cast(tf.floor(percent / 100 * tf.cast(last, tf.float64)), tf.int32)
