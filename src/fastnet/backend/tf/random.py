"""Random TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.tf.tensors import dtype_of

__all__ = ["random_normal_like", "random_uniform_like"]


def random_normal_like(
    tensor: tf.Tensor, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> tf.Tensor:
    """Draw from a normal distribution, in the shape of a tensor."""
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.normal(_shape_of(tensor), mean=mean, stddev=std, dtype=drawn)


def random_uniform_like(
    tensor: tf.Tensor, minval: float = 0.0, maxval: float = 1.0, dtype: Any = "float32"
) -> tf.Tensor:
    """Draw evenly from an interval, in the shape of a tensor."""
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.uniform(_shape_of(tensor), minval=minval, maxval=maxval, dtype=drawn)


def _shape_of(tensor: tf.Tensor) -> Any:
    return tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor)
