"""Shapes, joins, slices and conversions of TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.util.tensors import to_number

__all__ = [
    "concat",
    "convert",
    "expand_dims",
    "from_numpy",
    "get_shape",
    "is_integral",
    "pad_ends",
    "reduce_mean",
    "slices_along",
    "squeeze",
    "stack",
    "zeros",
    "zeros_like",
]


def concat(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Join tensors along an axis that they have."""
    return tf.concat(tensors, axis=axis)


def stack(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Join tensors along a new axis."""
    return tf.stack(tensors, axis=axis)


def expand_dims(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Give a tensor a new axis of length 1."""
    return tf.expand_dims(tensor, axis)


def squeeze(tensor: tf.Tensor, axis: int | None) -> tf.Tensor:
    """Take an axis of length 1, or all of them, out of a tensor."""
    return tf.squeeze(tensor, axis)


def from_numpy(array: np.ndarray[Any, Any], like: tf.Tensor) -> tf.Tensor:
    """Make a tensor of an array."""
    del like
    return tf.convert_to_tensor(array)


def get_shape(tensor: tf.Tensor) -> tuple[int, ...]:
    """Read the shape of a tensor."""
    return tuple(tensor.shape)


def zeros(shape: Sequence[int], like: tf.Tensor, dtype: str | None) -> tf.Tensor:
    """Make a tensor of zeros, of the type of another one unless a type is given."""
    return tf.zeros(tuple(shape), dtype=dtype or like.dtype)


def zeros_like(tensor: tf.Tensor, dtype: str | tf.DType | None) -> tf.Tensor:
    """Make zeros of the shape of a tensor."""
    return tf.zeros_like(tensor, dtype=dtype)


def is_integral(tensor: tf.Tensor) -> bool:
    """Tell whether a tensor holds ints or booleans."""
    return bool(tensor.dtype.is_integer or tensor.dtype.is_bool)


def reduce_mean(tensor: tf.Tensor, axis: Sequence[int] | None, keepdims: bool) -> tf.Tensor:
    """Average a tensor over some axes, or over all of them."""
    return tf.reduce_mean(tensor, axis=axis, keepdims=keepdims)


def slices_along(tensor: tf.Tensor, axis: int) -> list[tf.Tensor]:
    """Take each position of an axis as a tensor without that axis."""
    return tf.unstack(tensor, axis=axis) if tensor.shape[axis] else []


def pad_ends(tensor: tf.Tensor, amounts: Sequence[int], mirror: bool, value: float) -> tf.Tensor:
    """Lengthen each axis at its end by copies of a value, or by what stands before it."""
    if not any(amounts):
        return tensor
    widths = [(0, amount) for amount in amounts]
    if mirror:
        return tf.pad(tensor, widths, mode="REFLECT")
    return tf.pad(tensor, widths, constant_values=tf.cast(value, tensor.dtype))


def convert(value: Any) -> Any:
    """Turn a value into a tensor, unless it is one; strings and None stay as they are."""
    if value is None or isinstance(value, (str, bytes)) or is_tensor(value):
        return value
    array = to_number(value)
    if array.dtype.kind == "O":
        raise TypeError(
            f"A value of type {type(value).__name__} has no tensor of its own in TensorFlow: numpy "
            "makes an array of Python objects of it. Convert it to numbers first."
        )
    return tf.convert_to_tensor(array)


def is_tensor(value: object) -> bool:
    """Tell whether a value is TensorFlow's: a tensor, a variable, or made of several tensors."""
    return bool(tf.is_tensor(value)) or isinstance(value, tf.distribute.DistributedValues)
