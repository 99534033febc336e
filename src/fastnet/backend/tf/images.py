"""Normalizing and mixing images, and resizing volumes, in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.precision import compute_precision
from fastnet.backend.tf.tensors import cast_like, get_shape

CHANNEL_AXIS = -1


class Normalizer:
    """Normalizes images per channel, in float32, or float16 under that Keras precision policy."""

    def __init__(self, mean: Any, std: Any, max_pixel_value: float, epsilon: float = 1e-7) -> None:
        precision = compute_precision()
        self._dtype = tf.as_dtype(precision)
        with tf.init_scope():
            self._shift, scale = (
                tf.cast(tf.constant(fraction, tf.float32) * max_pixel_value, precision)
                for fraction in (mean, std)
            )
            self._scale = scale + epsilon

    def __call__(self, tensor: tf.Tensor) -> tf.Tensor:
        """Normalize images."""
        if tensor.dtype is not self._dtype:
            tensor = tf.cast(tensor, self._dtype)
        return (tensor - self._shift) / self._scale


def resize_3d(
    tensor: tf.Tensor, output_shape: Sequence[int], resize_mode: str = "nearest"
) -> tf.Tensor:
    """Resize volumes, shape (batch, height, width, depth, channels)."""
    sizes = get_shape(tensor)[1:4]
    if resize_mode == "nearest":
        for axis, new_size in enumerate(output_shape, start=1):
            indices = _nearest_indices(sizes[axis - 1], new_size)
            tensor = tf.gather(tensor, indices, axis=axis)
        return tensor
    # `tf.image.resize` has no gradient for areas.
    tensor = tf.cast(tensor, tf.float32)
    for axis, new_size in enumerate(output_shape, start=1):
        weights = _area_weights(sizes[axis - 1], new_size)
        tensor = tf.einsum(_ALONG[axis - 1], weights, tensor)
    return tensor


_ALONG = ("nx,bxyzc->bnyzc", "ny,bxyzc->bxnzc", "nz,bxyzc->bxync")


def _nearest_indices(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Return the index of the nearest neighbor of each new position."""
    # Single precision, as in `tf.image`, because rounding decides between neighbors.
    scale = tf.cast(size, tf.float32) / tf.cast(new_size, tf.float32)
    centers = (tf.range(new_size, dtype=tf.float32) + 0.5) * scale
    return tf.minimum(tf.cast(tf.floor(centers), tf.int32), size - 1)


def _area_weights(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Return the share of each old position in each new one, shape (new_size, size)."""
    old = tf.range(size)[None]
    # In units in which both old and new positions are integers.
    starts = tf.range(new_size)[:, None] * size
    covered = tf.minimum(starts + size, (old + 1) * new_size) - tf.maximum(starts, old * new_size)
    return tf.cast(tf.maximum(covered, 0), tf.float32) / tf.cast(size, tf.float32)


def mix_up(
    samples: tf.Tensor, labels: tf.Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blend each sample with the previous one by `max(share, 1 - share)`, and its label by `share`.

    FastEstimator does the same.
    """
    share = label_share = _draw(alpha, samples, beta, per_sample=not shared)
    if not shared:
        share = tf.reshape(share, [-1] + [1] * (len(samples.shape) - 1))
        label_share = tf.reshape(label_share, [-1] + [1] * (len(labels.shape) - 1))
    share = tf.maximum(share, 1.0 - share)
    return _blend(samples, share), _blend(labels, label_share)


def cut_mix(
    images: tf.Tensor, labels: tf.Tensor, alpha: float, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Paste a box of each image into the next one, and mix their labels by area."""
    share = _draw(alpha, images, beta, per_sample=False)
    share = tf.maximum(share, 1.0 - share)
    x, y = tf.random.uniform(()), tf.random.uniform(())
    shape = tf.shape(images)
    height, width = shape[1], shape[2]
    left, right = _span(width, x, share)
    top, bottom = _span(height, y, share)
    rows, columns = tf.range(height), tf.range(width)
    in_rows = tf.logical_and(rows >= top, rows < bottom)
    in_columns = tf.logical_and(columns >= left, columns < right)
    in_box = tf.logical_and(in_rows[:, None], in_columns[None, :])[None, :, :, None]
    area = tf.cast((right - left) * (bottom - top), tf.float32)
    kept_share = 1.0 - tf.realdiv(area, tf.cast(height * width, tf.float32))
    return tf.where(in_box, tf.roll(images, 1, 0), images), _blend(labels, kept_share)


def _blend(values: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Add the rest of the previous value to a share of each; integers become floats."""
    if not values.dtype.is_floating:
        values = tf.cast(values, share.dtype)
    share = cast_like(share, values)
    return tf.add(tf.multiply(values, share), tf.multiply(tf.roll(values, 1, 0), 1.0 - share))


def _draw(alpha: float, batch: tf.Tensor, beta: Any, per_sample: bool) -> tf.Tensor:
    """Draw one share from a symmetric beta distribution, or one for each sample."""
    if beta is not None:
        drawn = beta.sample(sample_shape=(tf.shape(batch)[0],)) if per_sample else beta.sample()
        return tf.cast(drawn, tf.float32)
    shape = tf.shape(batch)[:1] if per_sample else []
    first = tf.random.gamma(shape, alpha)
    second = tf.random.gamma(shape, alpha)
    # Both underflow to 0 only if alpha is tiny, where the share is nearly always 0 or 1.
    total = tf.add(first, second)
    zero_or_one = tf.round(tf.random.uniform(tf.shape(first)))
    return tf.where(total > 0, tf.realdiv(first, total), zero_or_one)


def _span(length: tf.Tensor, middle: tf.Tensor, outside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the start and end of a span, given its relative center and the share outside of it."""
    size = tf.cast(length, tf.float32)
    half = tf.realdiv(tf.multiply(size, tf.sqrt(1.0 - outside)), 2)
    middle = tf.multiply(size, middle)
    start = tf.round(tf.maximum(tf.subtract(middle, half), 0.0))
    end = tf.round(tf.minimum(tf.add(middle, half), size))
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)
