"""TensorFlow images and volumes, their channels last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tensorflow as tf

from fastnet.backend.precision import compute_precision
from fastnet.backend.tf.tensors import get_shape

__all__ = ["CHANNEL_AXIS", "Normalizer", "normalize", "resize_3d"]

CHANNEL_AXIS = -1


def normalize(
    tensor: tf.Tensor,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    max_pixel_value: float,
    epsilon: float = 1e-7,
) -> tf.Tensor:
    """Shift and scale images, a channel at a time."""
    return Normalizer(mean, std, max_pixel_value, epsilon)(tensor)


class Normalizer:
    """Shifts and scales images, a channel at a time.

    What is computed in is settled here: float32, or float16 where Keras's precision policy is so.

    Args:
        mean: The mean, one for all channels or one a channel.
        std: The standard deviation, likewise.
        max_pixel_value: The largest value that a pixel can have.
        epsilon: What is added to the deviation.
    """

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        max_pixel_value: float,
        epsilon: float = 1e-7,
    ) -> None:
        precision = compute_precision()
        self._dtype = tf.as_dtype(precision)
        with tf.init_scope():  # what is made here outlives a graph
            self._shift, scale = (
                tf.cast(tf.constant(each, tf.float32) * max_pixel_value, precision)
                for each in (mean, std)
            )
            self._scale = scale + epsilon

    def __call__(self, tensor: tf.Tensor) -> tf.Tensor:
        """Shift and scale.

        Args:
            tensor: The images.

        Returns:
            The same images, normalized.
        """
        if tensor.dtype is not self._dtype:
            tensor = tf.cast(tensor, self._dtype)
        if isinstance(tensor, tf.Tensor):
            # what `-` and `/` come to, in half their time
            shifted = tf.raw_ops.Sub(x=tensor, y=self._shift)
            return tf.raw_ops.RealDiv(x=shifted, y=self._scale)
        return (tensor - self._shift) / self._scale


def resize_3d(
    tensor: tf.Tensor, output_shape: Sequence[int], resize_mode: str = "nearest"
) -> tf.Tensor:
    """Resize volumes, shape (batch, height, width, depth, channels)."""
    if resize_mode == "nearest":
        lengths = tensor.shape.as_list()
        if None in lengths:
            lengths = get_shape(tensor)
        _, height, width, depth, _ = lengths
        new_height, new_width, new_depth = output_shape
        take = tf.raw_ops.GatherV2  # what tf.gather comes to, in half its time
        tensor = take(params=tensor, indices=_nearest_places(height, new_height), axis=1)
        tensor = take(params=tensor, indices=_nearest_places(width, new_width), axis=2)
        return take(params=tensor, indices=_nearest_places(depth, new_depth), axis=3)
    sizes = get_shape(tensor)[1:4]
    # not tf.image.resize, which has no gradient for this
    tensor = tf.cast(tensor, tf.float32)
    for axis, new_size in enumerate(output_shape, start=1):
        weights = _area_weights(sizes[axis - 1], new_size)
        tensor = tf.einsum(_ALONG[axis - 1], weights, tensor)
    return tensor


_ALONG = ("nx,bxyzc->bnyzc", "ny,bxyzc->bxnzc", "nz,bxyzc->bxync")


def _nearest_places(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Find the old position nearest to each new one."""
    if isinstance(size, int):
        return _constant_places(size, new_size)
    # in single precision, where a rounding decides, as tf.image does
    scale = tf.cast(size, tf.float32) / tf.cast(new_size, tf.float32)
    centers = (tf.range(new_size, dtype=tf.float32) + 0.5) * scale
    return tf.minimum(tf.cast(tf.floor(centers), tf.int32), size - 1)


@lru_cache(maxsize=64)
def _constant_places(size: int, new_size: int) -> tf.Tensor:
    scale = np.float32(size) / np.float32(new_size)
    centers = (np.arange(new_size, dtype=np.float32) + np.float32(0.5)) * scale
    with tf.init_scope():  # what is made here outlives a graph
        return tf.constant(np.minimum(np.floor(centers).astype(np.int32), size - 1))


def _area_weights(size: int | tf.Tensor, new_size: int) -> tf.Tensor:
    """Find how much of each new position each old one covers, shape (new_size, size)."""
    old = tf.range(size)[None]
    # in units of which both old and new positions are whole numbers
    starts = tf.range(new_size)[:, None] * size
    covered = tf.minimum(starts + size, (old + 1) * new_size) - tf.maximum(starts, old * new_size)
    return tf.cast(tf.maximum(covered, 0), tf.float32) / tf.cast(size, tf.float32)
