"""The Lambert W function of TensorFlow tensors, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from fastnet.backend.numpy.lambertw import ENDS, NEAR, series

__all__ = ["lambertw"]

# Iterations by mantissa bits: each triples the correct ones, of which the first guess has six.
ROUNDS = {24: 2, 53: 3}


def lambertw(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(_lambertw(tf.cast(tensor, tf.float32)), tensor.dtype)
    return _lambertw(tf.convert_to_tensor(tensor))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _lambertw(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:

    def gradient(of_w: tf.Tensor) -> tf.Tensor:
        w = _lambertw(z)  # Computed again, so that the gradient is differentiable.
        root = _root(z)
        above = tf.where(tf.less(root, NEAR[_digits(z.dtype)]), series(root), tf.add(w, 1.0))
        # Bounded at the end of the branch, so that a gradient of 0 stays 0.
        return of_w * tf.exp(-w) / tf.maximum(above, _resolution(z.dtype))

    return _solve(z), gradient


def _solve(z: tf.Tensor) -> tf.Tensor:
    # A rounded -1/e counts as the end of the branch.
    room = 4 * _resolution(z.dtype)
    root = _root(z)
    near = tf.add(series(root), -1.0)
    log = tf.math.log1p(tf.maximum(z, -0.3))
    far = tf.multiply(log, 1.0 - tf.realdiv(tf.math.log1p(log), tf.add(log, 2.0)))
    w = tf.where(tf.less(z, -0.2649), near, far)
    for _ in range(ROUNDS[_digits(z.dtype)]):
        # Halley's method, arranged so that nothing overflows.
        error = tf.subtract(w, tf.multiply(z, tf.exp(tf.negative(w))))
        more = tf.add(w, 1.0)
        bottom = tf.subtract(
            tf.multiply(tf.pow(more, 2.0), 2.0), tf.multiply(tf.add(w, 2.0), error)
        )
        w = tf.subtract(
            w, tf.math.divide_no_nan(tf.multiply(tf.multiply(more, 2.0), error), bottom)
        )
    # Next to the end of the branch the error has too few digits for it.
    w = tf.where(tf.less(root, NEAR[_digits(z.dtype)]), near, w)
    w = tf.where(tf.equal(z, math.inf), z, w)
    return tf.where(z < -(1 + room) / math.e, tf.cast(math.nan, z.dtype), w)


def _root(z: tf.Tensor) -> tf.Tensor:
    """Return the square root of 2 e (z + 1/e)."""
    end, rest = ENDS[_digits(z.dtype)]
    # Two additions, which a graph must not fold into one.
    above = tf.add(tf.multiply(tf.add(z, -end), 2 * math.e), -2 * math.e * rest)
    # The derivative of the square root is infinite at 0.
    return tf.sqrt(tf.maximum(above, _resolution(z.dtype) ** 2 / 4))


def _digits(dtype: tf.DType) -> int:
    """Return the number of mantissa bits of a dtype."""
    return 53 if dtype == tf.float64 else 24


def _resolution(dtype: tf.DType) -> float:
    return 2.0**-52 if dtype == tf.float64 else 2.0**-23
