"""Functions of the elements of TensorFlow tensors, and products."""

from __future__ import annotations

import tensorflow as tf

from fastnet.backend.tf.lambertw import lambertw

__all__ = [
    "abs",
    "add",
    "argmax",
    "check_nan",
    "clip_by_value",
    "code_probabilities",
    "divide",
    "exp",
    "lambertw",
    "matmul",
    "maximum",
    "multiply",
    "pow",
    "sign",
    "tensor_round",
    "tensor_sqrt",
    "zscore",
]

# what `+`, `*` and `/` come to for a tensor in front, after a look at both operands
add, multiply, divide = tf.add, tf.multiply, tf.realdiv


def abs(tensor: tf.Tensor) -> tf.Tensor:
    """Take absolute values."""
    return tf.abs(tensor)


def argmax(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Find where along an axis the largest value is, the first of several."""
    return tf.argmax(tensor, axis=axis)


def check_nan(val: tf.Tensor) -> tf.Tensor:
    """Return whether any value is NaN or infinite."""
    if not val.dtype.is_floating:
        return tf.constant(False)
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(val)))


def clip_by_value(
    tensor: tf.Tensor, min_value: float | tf.Tensor | None, max_value: float | tf.Tensor | None
) -> tf.Tensor:
    """Move values that lie outside an interval to its ends."""
    if min_value is None:
        return tf.minimum(tensor, max_value)
    if max_value is None:
        return tf.maximum(tensor, min_value)
    return tf.clip_by_value(tensor, min_value, max_value)


def code_probabilities(tensor: tf.Tensor, codes: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Find how likely each of some codes is, the nearer the likelier."""
    apart = tf.subtract(tf.expand_dims(tensor, 1), codes)
    distances = tf.reduce_sum(tf.abs(apart), -1)
    closeness = tf.realdiv(1.0, tf.maximum(distances, least))
    return tf.realdiv(closeness, tf.reduce_sum(closeness, -1, True))


def exp(tensor: tf.Tensor) -> tf.Tensor:
    """Raise e to each element."""
    return tf.exp(tensor)


def matmul(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply matrices, or stacks of them."""
    return tf.matmul(a, b)


def maximum(tensor1: tf.Tensor, tensor2: tf.Tensor) -> tf.Tensor:
    """Take the larger of each two elements."""
    return tf.maximum(tensor1, tensor2)


def pow(tensor: tf.Tensor, power: float | tf.Tensor) -> tf.Tensor:
    """Raise each element to a power."""
    return tf.pow(tensor, power)


def sign(tensor: tf.Tensor) -> tf.Tensor:
    """Return the sign of each element: -1, 0 or 1."""
    return tf.sign(tensor)


def tensor_round(tensor: tf.Tensor) -> tf.Tensor:
    """Round each element, halves to the even number."""
    return tf.round(tensor)


def tensor_sqrt(tensor: tf.Tensor) -> tf.Tensor:
    """Take square roots."""
    return tf.sqrt(tensor)


def zscore(data: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Shift and scale a tensor to mean 0 and standard deviation 1."""
    data = tf.cast(data, tf.float32)
    return (data - tf.reduce_mean(data)) / tf.maximum(tf.math.reduce_std(data), epsilon)
