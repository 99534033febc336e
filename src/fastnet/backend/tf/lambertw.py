"""Lambert's W of TensorFlow tensors, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

__all__ = ["lambertw"]

# each triples the number of right digits, of which the first guess has two
ROUNDS = 4


def lambertw(tensor: tf.Tensor) -> tf.Tensor:
    """Solve w * exp(w) = z for w, on the upper real branch; NaN where there is none."""
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(_lambertw(tf.cast(tensor, tf.float32)), tensor.dtype)
    return _lambertw(tf.convert_to_tensor(tensor))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _lambertw(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """W, with the derivative that follows from its definition."""

    def gradient(of_w: tf.Tensor) -> tf.Tensor:
        w = _lambertw(z)  # anew, so that this can be differentiated in turn
        # steep, but not infinite, at the end of the branch: nothing times it stays nothing
        return of_w * tf.exp(-w) / tf.maximum(1 + w, _resolution(z.dtype))

    return _solve(z), gradient


def _solve(z: tf.Tensor) -> tf.Tensor:
    # a rounded -1/e counts as the end of the branch
    room = 4 * _resolution(z.dtype)
    below = tf.maximum(2 * (1 + math.e * z), 0)
    root = tf.sqrt(below)
    near = -1 + root - below / 3 + 11 / 72 * below * root
    log = tf.math.log1p(tf.maximum(z, -0.3))
    far = log * (1 - tf.math.log1p(log) / (2 + log))
    w = tf.where(z < -0.2649, near, far)
    for _ in range(ROUNDS):
        # Halley's rule, where nothing overflows
        error = w - z * tf.exp(-w)
        bottom = 2 * (w + 1) ** 2 - (w + 2) * error
        w = w - tf.math.divide_no_nan(2 * (w + 1) * error, bottom)
    w = tf.where(z == math.inf, z, w)
    return tf.where(z < -(1 + room) / math.e, tf.cast(math.nan, z.dtype), w)


def _resolution(dtype: tf.DType) -> float:
    return 2.0**-52 if dtype == tf.float64 else 2.0**-23
