"""Creating, converting, joining, slicing and reshaping TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.errors import shorten
from fastnet.util.tensors import to_number

CHANNELS_LAST = True

concat, stack, expand_dims, squeeze = tf.concat, tf.stack, tf.expand_dims, tf.squeeze
flip, reshape, roll, transpose = tf.reverse, tf.reshape, tf.roll, tf.transpose

to_numpy, shape_of = methodcaller("numpy"), attrgetter("shape")


def constant(array: np.ndarray[Any, Any], like: tf.Tensor) -> tf.Tensor:
    # Lifted out of the graph that is being traced, because later steps use it as well.
    with tf.init_scope():
        return tf.constant(array)


def get_shape(tensor: tf.Tensor) -> tuple[Any, ...]:
    shape = tuple(tensor.shape)
    if None not in shape:
        return shape
    lengths = tf.shape(tensor)
    return tuple(lengths[axis] if size is None else size for axis, size in enumerate(shape))


def zeros_like(tensor: tf.Tensor, dtype: str | tf.DType | None) -> tf.Tensor:
    return tf.zeros_like(tensor, dtype=dtype_of(dtype))


def ones_like(tensor: tf.Tensor, dtype: str | tf.DType | None) -> tf.Tensor:
    return tf.ones_like(tensor, dtype=dtype_of(dtype))


def is_integral(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_integer or tensor.dtype.is_bool)


def slices_along(tensor: tf.Tensor, axis: int) -> list[tf.Tensor]:
    return tf.unstack(tensor, axis=axis) if tensor.shape[axis] else []


def pad_ends(tensor: tf.Tensor, amounts: Sequence[int], mirror: bool, value: float) -> tf.Tensor:
    """Pad the end of each axis with a value, or by reflection."""
    if not any(amounts):
        return tensor
    widths = [(0, amount) for amount in amounts]
    if mirror:
        return tf.pad(tensor, widths, mode="REFLECT")
    fill = "" if tensor.dtype == tf.string else tf.cast(value, tensor.dtype)
    return tf.pad(tensor, widths, constant_values=fill)


def convert(value: Any) -> Any:
    """Convert a value to a tensor; strings and None are returned as they are."""
    if value is None or isinstance(value, (str, bytes)) or is_tensor(value):
        return value
    array = to_number(value)
    # Strings are objects in the arrays of TensorFlow.
    if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.flat):
        raise TypeError(
            f"A value of type {type(value).__name__} cannot be converted to a TensorFlow tensor, "
            "because numpy makes an array of Python objects of it. Convert it to numbers first."
        )
    return tf.convert_to_tensor(array)


def is_tensor(value: object) -> bool:
    return bool(tf.is_tensor(value)) or isinstance(value, tf.distribute.DistributedValues)


def cast(tensor: Any, dtype: str | tf.DType) -> tf.Tensor:
    try:
        return tf.cast(tensor, dtype)
    except TypeError:
        dtype_of(dtype)  # Raises the error for an unknown dtype.
        raise


def cast_like(value: Any, like: tf.Tensor) -> tf.Tensor:
    """Convert a value to a tensor of the dtype of another tensor."""
    dtype = like.dtype
    if not is_tensor(value):
        return tf.cast(to_number(value), dtype)
    return value if value.dtype is dtype else tf.cast(value, dtype)


def gather(tensor: tf.Tensor, indices: Any) -> tf.Tensor:
    indices = _indices(indices)
    single = [axis for axis, size in enumerate(indices.shape) if size == 1]
    return tf.gather(tensor, tf.squeeze(indices, single) if single else indices, axis=0)


def gather_from_batch(tensor: tf.Tensor, indices: Any) -> tf.Tensor:
    indices = _indices(indices)
    if len(indices.shape) == 1:
        return tf.gather(tensor, indices, axis=1, batch_dims=1)
    return tf.gather_nd(tensor, indices, batch_dims=1)


def permute(tensor: tf.Tensor, permutation: Sequence[int] | tf.Tensor) -> tf.Tensor:
    if not is_tensor(permutation):
        permutation = _counted_from_0(permutation)
    return tf.transpose(tensor, permutation)


def prepare_shape(shape: Sequence[int]) -> tf.Tensor:
    """Convert a shape for `reshape` once for all steps."""
    with tf.init_scope():
        return tf.constant(shape, tf.int32)


def prepare_permutation(permutation: Sequence[int]) -> tf.Tensor:
    """Convert a permutation for `permute` once for all steps."""
    return prepare_shape(_counted_from_0(permutation))


def _counted_from_0(axes: Sequence[int]) -> list[int]:
    # Negative axes crash TensorFlow 2.15, and newer versions compute wrong gradients for them.
    return [axis % len(axes) for axis in axes]


def where(condition: tf.Tensor, yes: Any, no: Any) -> tf.Tensor:
    if is_tensor(yes):
        if not is_tensor(no):
            no = tf.convert_to_tensor(no, yes.dtype)
    elif is_tensor(no):
        yes = tf.convert_to_tensor(yes, no.dtype)
    elif isinstance(yes, float) or isinstance(no, float):
        yes, no = float(yes), float(no)
    return tf.where(condition, yes, no)


def dtype_of(dtype: str | tf.DType | None) -> tf.DType | None:
    """Return a dtype by its name, such as "float32"."""
    try:
        return None if dtype is None else tf.as_dtype(dtype)
    except TypeError:
        raise ValueError(
            f"TensorFlow has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'."
        ) from None


def _indices(indices: Any) -> tf.Tensor:
    dtype = getattr(indices, "dtype", None)
    if dtype is tf.int64 or dtype is tf.int32:
        return indices
    return tf.cast(indices if is_tensor(indices) else to_number(indices), tf.int64)


def random_normal_like(tensor: tf.Tensor, mean: float, std: float, dtype: Any) -> tf.Tensor:
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.normal(_shape_to_draw(tensor), mean=mean, stddev=std, dtype=drawn)


def random_uniform_like(tensor: tf.Tensor, minval: float, maxval: float, dtype: Any) -> tf.Tensor:
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.uniform(_shape_to_draw(tensor), minval=minval, maxval=maxval, dtype=drawn)


def _shape_to_draw(tensor: tf.Tensor) -> Any:
    return tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor)
