"""Shapes, joins, slices and conversions of TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.tf._internals import EAGER, shape_of_eager
from fastnet.errors import shorten
from fastnet.util.tensors import to_number

__all__ = [
    "CHANNELS_LAST",
    "cast",
    "cast_like",
    "concat",
    "constant",
    "convert",
    "dtype_of",
    "expand_dims",
    "flip",
    "from_numpy",
    "gather",
    "gather_from_batch",
    "get_image_dims",
    "get_shape",
    "is_integral",
    "ones_like",
    "pad_ends",
    "permute",
    "random_normal_like",
    "random_uniform_like",
    "rank_of",
    "reshape",
    "roll",
    "settled_order",
    "settled_shape",
    "shape_of",
    "slices_along",
    "squeeze",
    "stack",
    "to_numpy",
    "transpose",
    "where",
    "zeros",
    "zeros_like",
]

CHANNELS_LAST = True


def concat(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Join tensors along an axis that they have."""
    return tf.concat(tensors, axis=axis)


def stack(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Join tensors along a new axis."""
    return tf.stack(tensors, axis=axis)


def expand_dims(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Insert an axis of length 1 into a tensor."""
    return tf.expand_dims(tensor, axis)


def squeeze(tensor: tf.Tensor, axis: int | None) -> tf.Tensor:
    """Take an axis of length 1, or all of them, out of a tensor."""
    return tf.squeeze(tensor, axis)


def to_numpy(tensor: tf.Tensor) -> np.ndarray[Any, Any]:
    """Read a tensor as an array of its own type, strings as objects; for what is not in a graph."""
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def constant(array: np.ndarray[Any, Any], like: tf.Tensor) -> tf.Tensor:
    """Make a tensor of an array, on the device of another tensor, for later steps as well."""
    with tf.init_scope():  # what is made here outlives a graph
        return tf.constant(array)


def from_numpy(array: np.ndarray[Any, Any], like: tf.Tensor) -> tf.Tensor:
    """Make a tensor of an array."""
    del like
    return tf.convert_to_tensor(array)


def shape_of(tensor: tf.Tensor) -> tuple[int, ...] | tf.TensorShape:
    """Read the shape of a tensor, as far as it is known; an eager tensor's is a tuple."""
    shape: tuple[int, ...] | tf.TensorShape
    shape = shape_of_eager(tensor) if type(tensor) is EAGER else tensor.shape
    return shape


def rank_of(tensor: tf.Tensor) -> int | None:
    """Count the axes of a tensor; a graph may leave open how many there are."""
    if type(tensor) is EAGER:
        return len(shape_of_eager(tensor))
    rank: int | None = tensor.shape.rank
    return rank


def get_shape(tensor: tf.Tensor) -> tuple[Any, ...]:
    """Read the shape of a tensor; an axis that a graph leaves open has a tensor for its length."""
    shape = tuple(tensor.shape)
    if None not in shape:
        return shape
    lengths = tf.shape(tensor)
    return tuple(lengths[axis] if size is None else size for axis, size in enumerate(shape))


def zeros(shape: Sequence[int], like: tf.Tensor, dtype: str | None) -> tf.Tensor:
    """Make a tensor of zeros, of the type of another one unless a type is given."""
    return tf.zeros(tuple(shape), dtype=dtype or like.dtype)


def zeros_like(tensor: tf.Tensor, dtype: str | tf.DType | None) -> tf.Tensor:
    """Make zeros of the shape of a tensor."""
    return tf.zeros_like(tensor, dtype=dtype)


def is_integral(tensor: tf.Tensor) -> bool:
    """Return whether a tensor holds ints or booleans."""
    return bool(tensor.dtype.is_integer or tensor.dtype.is_bool)


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
    fill = "" if tensor.dtype == tf.string else tf.cast(value, tensor.dtype)
    return tf.pad(tensor, widths, constant_values=fill)


def convert(value: Any) -> Any:
    """Turn a value into a tensor, unless it is one; strings and None stay as they are."""
    if value is None or isinstance(value, (str, bytes)) or is_tensor(value):
        return value
    array = to_number(value)
    # strings are objects in the arrays that TensorFlow makes
    if array.dtype.kind == "O" and not all(isinstance(one, (str, bytes)) for one in array.flat):
        raise TypeError(
            f"A value of type {type(value).__name__} has no tensor of its own in TensorFlow: numpy "
            "makes an array of Python objects of it. Convert it to numbers first."
        )
    return tf.convert_to_tensor(array)


def is_tensor(value: object) -> bool:
    """Return whether a value is TensorFlow's: a tensor, a variable, or made of several tensors."""
    return bool(tf.is_tensor(value)) or isinstance(value, tf.distribute.DistributedValues)


def cast(tensor: Any, dtype: str | tf.DType) -> tf.Tensor:
    """Convert a tensor to another type."""
    try:
        return tf.cast(tensor, dtype)
    except TypeError:
        dtype_of(dtype)  # says so if that is what was wrong
        raise


def cast_like(value: Any, like: tf.Tensor) -> tf.Tensor:
    """Make a tensor of the type of another one of a value."""
    dtype = like.dtype
    if type(value) is not EAGER and not is_tensor(value):
        return tf.cast(to_number(value), dtype)
    return value if value.dtype is dtype else tf.cast(value, dtype)


def flip(tensor: tf.Tensor, axis: Sequence[int]) -> tf.Tensor:
    """Turn axes round."""
    return tf.reverse(tensor, list(axis))


def gather(tensor: tf.Tensor, indices: Any) -> tf.Tensor:
    """Take entries of the first axis."""
    indices = _indices(indices)
    # an axis that a graph leaves open stays, whatever its length turns out to be
    single = [axis for axis, size in enumerate(indices.shape) if size == 1]
    return tf.gather(tensor, tf.squeeze(indices, single) if single else indices, axis=0)


def gather_from_batch(tensor: tf.Tensor, indices: Any) -> tf.Tensor:
    """Take an entry of the second axis for each one of the first."""
    indices = _indices(indices)
    if len(indices.shape) == 1:
        if isinstance(tensor, tf.Tensor):
            # what tf.gather comes to, in half its time
            return tf.raw_ops.GatherV2(params=tensor, indices=indices, axis=1, batch_dims=1)
        return tf.gather(tensor, indices, axis=1, batch_dims=1)
    return tf.gather_nd(tensor, indices, batch_dims=1)


def get_image_dims(tensor: tf.Tensor) -> tuple[Any, Any, Any]:
    """Read the channels, height and width of an image, or of a batch of them."""
    height, width, channels = get_shape(tensor)[-3:]
    return channels, height, width


def ones_like(tensor: tf.Tensor, dtype: str | tf.DType | None) -> tf.Tensor:
    """Make ones of the shape of a tensor."""
    return tf.ones_like(tensor, dtype=dtype_of(dtype))


def permute(tensor: tf.Tensor, permutation: Sequence[int] | tf.Tensor) -> tf.Tensor:
    """Put the axes into another order."""
    if not is_tensor(permutation):
        permutation = _counted_from_0(permutation)
    return tf.transpose(tensor, permutation)


def reshape(tensor: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
    """Reshape a tensor."""
    return tf.reshape(tensor, shape)


def roll(tensor: tf.Tensor, shift: int | Sequence[int], axis: int | Sequence[int]) -> tf.Tensor:
    """Shift entries along axes; those that leave come in at the other end."""
    return tf.roll(tensor, shift, axis)


def transpose(tensor: tf.Tensor) -> tf.Tensor:
    """Turn the order of the axes round."""
    return tf.transpose(tensor)


def settled_shape(shape: Sequence[int]) -> tf.Tensor:
    """Make of a shape what `reshape` takes, for all steps: it makes a tensor of a list."""
    with tf.init_scope():  # what is made here outlives a graph
        return tf.constant(shape, tf.int32)


def settled_order(permutation: Sequence[int]) -> tf.Tensor:
    """Make of an order of axes what `permute` takes, for all steps."""
    return settled_shape(_counted_from_0(permutation))


def _counted_from_0(axes: Sequence[int]) -> list[int]:
    # counted from the end they crash TensorFlow 2.15, and later ones get gradients wrong
    return [axis % len(axes) for axis in axes]


def where(condition: tf.Tensor, yes: Any, no: Any) -> tf.Tensor:
    """Take each element from one of two tensors or numbers; a number has the tensor's type."""
    if is_tensor(yes):
        if not is_tensor(no):
            no = tf.convert_to_tensor(no, yes.dtype)
    elif is_tensor(no):
        yes = tf.convert_to_tensor(yes, no.dtype)
    elif isinstance(yes, float) or isinstance(no, float):
        yes, no = float(yes), float(no)
    return tf.where(condition, yes, no)


def dtype_of(dtype: str | tf.DType | None) -> tf.DType | None:
    """Find the type of a name, such as "float32"."""
    try:
        return None if dtype is None else tf.as_dtype(dtype)
    except TypeError:
        raise ValueError(
            f"TensorFlow has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'."
        ) from None


def _indices(indices: Any) -> tf.Tensor:
    dtype = getattr(indices, "dtype", None)
    if dtype is tf.int64 or dtype is tf.int32:  # no array's type is one of these
        return indices
    return tf.cast(indices if is_tensor(indices) else to_number(indices), tf.int64)


def random_normal_like(
    tensor: tf.Tensor, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> tf.Tensor:
    """Sample from a normal distribution, with the shape of a tensor."""
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.normal(_static_shape_of(tensor), mean=mean, stddev=std, dtype=drawn)


def random_uniform_like(
    tensor: tf.Tensor, minval: float = 0.0, maxval: float = 1.0, dtype: Any = "float32"
) -> tf.Tensor:
    """Sample from a uniform distribution, with the shape of a tensor."""
    drawn = dtype_of(dtype) or tensor.dtype
    return tf.random.uniform(_static_shape_of(tensor), minval=minval, maxval=maxval, dtype=drawn)


def _static_shape_of(tensor: tf.Tensor) -> Any:
    return tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor)
