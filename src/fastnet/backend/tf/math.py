"""Elementwise functions and products of TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from fastnet.backend.lambert import Functions, slope, solve

# Called directly these are faster than the operators `+`, `*` and `/`.
add, multiply, divide = tf.add, tf.multiply, tf.realdiv
abs, exp, sign, tensor_round, tensor_sqrt = tf.abs, tf.exp, tf.sign, tf.round, tf.sqrt
argmax, matmul, maximum, pow = tf.argmax, tf.matmul, tf.maximum, tf.pow
reciprocal = partial(tf.realdiv, 1.0)  # `tf.math.reciprocal` rounds differently.


def check_nan(val: tf.Tensor) -> tf.Tensor:
    if val.dtype.is_complex:
        val = tf.abs(val)
    if not val.dtype.is_floating:
        return tf.constant(False)
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(val)))


def clip_by_value(
    tensor: tf.Tensor, min_value: float | tf.Tensor | None, max_value: float | tf.Tensor | None
) -> tf.Tensor:
    if min_value is None:
        return tf.minimum(tensor, max_value)
    if max_value is None:
        return tf.maximum(tensor, min_value)
    return tf.clip_by_value(tensor, min_value, max_value)


def zscore(data: tf.Tensor, epsilon: float) -> tf.Tensor:
    data = tf.cast(data, tf.float32)
    return (data - tf.reduce_mean(data)) / tf.maximum(tf.math.reduce_std(data), epsilon)


_FUNCTIONS = Functions(tf.exp, tf.math.log1p, tf.sqrt, tf.maximum, tf.where)


def lambertw(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(_lambertw(tf.cast(tensor, tf.float32)), tensor.dtype)
    return _lambertw(tf.convert_to_tensor(tensor))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _lambertw(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    mantissa_bits = 53 if z.dtype == tf.float64 else 24

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        # Compute W again, so that the gradient is differentiable.
        return upstream * slope(z, _lambertw(z), mantissa_bits, _FUNCTIONS)

    return solve(z, mantissa_bits, _FUNCTIONS), gradient
