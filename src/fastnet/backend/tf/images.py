"""TensorFlow images and volumes, their channels last."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from fastnet.backend.precision import compute_precision
from fastnet.backend.tf.tensors import get_shape

__all__ = ["CHANNEL_AXIS", "normalize", "resize_3d"]

CHANNEL_AXIS = -1


def normalize(
    tensor: tf.Tensor,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    max_pixel_value: float,
    epsilon: float = 1e-7,
) -> tf.Tensor:
    """Shift and scale images, a channel at a time."""
    dtype = compute_precision()
    shift, scale = (
        tf.cast(tf.constant(each, tf.float32) * max_pixel_value, dtype) for each in (mean, std)
    )
    return (tf.cast(tensor, dtype) - shift) / (scale + epsilon)


def resize_3d(
    tensor: tf.Tensor, output_shape: Sequence[int], resize_mode: str = "nearest"
) -> tf.Tensor:
    """Resize volumes, shape (batch, height, width, depth, channels)."""
    sizes = get_shape(tensor)[1:4]
    if resize_mode == "nearest":
        for axis, new_size in enumerate(output_shape, start=1):
            tensor = tf.gather(tensor, _nearest_places(sizes[axis - 1], new_size), axis=axis)
        return tensor
    # not tf.image.resize, which has no gradient for this
    tensor = tf.cast(tensor, tf.float32)
    for axis, new_size in enumerate(output_shape, start=1):
        weights = _area_weights(sizes[axis - 1], new_size)
        tensor = tf.einsum(_ALONG[axis - 1], weights, tensor)
    return tensor


_ALONG = ("nx,bxyzc->bnyzc", "ny,bxyzc->bxnzc", "nz,bxyzc->bxync")


def _nearest_places(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Find the old position nearest to each new one."""
    # in single precision, where a rounding decides, as tf.image does
    scale = tf.cast(size, tf.float32) / tf.cast(new_size, tf.float32)
    centers = (tf.range(new_size, dtype=tf.float32) + 0.5) * scale
    return tf.minimum(tf.cast(tf.floor(centers), tf.int32), size - 1)


def _area_weights(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Find how much of each new position each old one covers, shape (new_size, size)."""
    old = tf.range(size)[None]
    # in units of which both old and new positions are whole numbers
    starts = tf.range(new_size)[:, None] * size
    covered = tf.minimum(starts + size, (old + 1) * new_size) - tf.maximum(starts, old * new_size)
    return tf.cast(tf.maximum(covered, 0), tf.float32) / tf.cast(size, tf.float32)
