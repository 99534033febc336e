"""Normalizing images and resizing volumes in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from fastnet.backend.precision import compute_precision
from fastnet.backend.tf.tensors import get_shape

__all__ = ["CHANNEL_AXIS", "Normalizer", "resize_3d"]

CHANNEL_AXIS = -1


class Normalizer:
    """Normalizes images per channel, in float32, or float16 under that Keras precision policy."""

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        max_pixel_value: float,
        epsilon: float = 1e-7,
    ) -> None:
        precision = compute_precision()
        self._dtype = tf.as_dtype(precision)
        with tf.init_scope():
            self._shift, scale = (
                tf.cast(tf.constant(each, tf.float32) * max_pixel_value, precision)
                for each in (mean, std)
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
