"""Reductions of TensorFlow tensors over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, nan
from typing import Any

import tensorflow as tf

from fastnet.backend.tf.tensors import get_shape

# Unlike the functions below, these must not be called with an empty list of axes.
mean_of, sum_of = tf.reduce_mean, tf.reduce_sum

prepare_axes = list
"""Converts axes for `sum_of`. Not to a tensor: a graph would sum in another order."""

reduce_std = tf.math.reduce_std


def _reduction(reduce: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor, Any, bool], tf.Tensor]:
    def along_axes(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
        # A single axis as an int need not be converted to a tensor.
        axis_or_axes = axis[0] if axis is not None and len(axis) == 1 else axis
        return reduce(tensor, axis_or_axes, keepdims)

    return along_axes


reduce_mean, reduce_sum = _reduction(tf.reduce_mean), _reduction(tf.reduce_sum)
reduce_max, reduce_min = _reduction(tf.reduce_max), _reduction(tf.reduce_min)


def value_range(tensor: Any) -> tuple[float, float] | None:
    # The tensors of a graph have no `numpy`.
    if not (
        isinstance(tensor, tf.Tensor) and hasattr(tensor, "numpy") and tensor.dtype.is_floating
    ):
        return None
    if not tf.size(tensor):
        return None
    minimum, maximum = extremes(tensor)
    return float(minimum), float(maximum)


def extremes(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the minimum and the maximum of a tensor."""
    return tf.reduce_min(tensor), tf.reduce_max(tensor)


def percentile(
    tensor: tf.Tensor, percentiles: Sequence[float], axis: Sequence[int] | None, keepdims: bool
) -> tf.Tensor:
    """Return percentiles, rounded down to an element, stacked along a new first axis."""
    lengths = get_shape(tensor)
    rank = len(lengths)
    reduced_axes = list(range(rank)) if axis is None else [index % rank for index in axis]
    other_axes = [index for index in range(rank) if index not in reduced_axes]
    rows = tf.transpose(tensor, other_axes + reduced_axes)
    rows = tf.sort(tf.reshape(rows, [*[lengths[index] for index in other_axes], -1]), axis=-1)
    last = get_shape(rows)[-1] - 1
    values = [tf.gather(rows, _index(percent, last), axis=-1) for percent in percentiles]
    if tensor.dtype.is_floating:
        # The sorting order of NaN is undefined.
        is_nan = tf.reduce_any(tf.math.is_nan(rows), axis=-1)
        values = [tf.where(is_nan, tf.cast(nan, tensor.dtype), value) for value in values]
    if keepdims:
        shape = [1 if index in reduced_axes else lengths[index] for index in range(rank)]
        values = [tf.reshape(value, shape) for value in values]
    return tf.stack(values)


def _index(percent: float, last: int | tf.Tensor) -> Any:
    """Return the index of a percentile in a sorted row, rounded down."""
    if isinstance(last, int):
        return floor(percent / 100 * last)
    return tf.cast(tf.floor(percent / 100 * tf.cast(last, tf.float64)), tf.int32)
