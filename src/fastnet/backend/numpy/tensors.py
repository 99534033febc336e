"""Shapes, joins, slices and conversions of numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastnet.errors import shorten
from fastnet.util.tensors import to_number

__all__ = [
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
    "reshape",
    "roll",
    "settled_order",
    "settled_shape",
    "shape_of",
    "slices_along",
    "squeeze",
    "stack",
    "transpose",
    "where",
    "zeros",
    "zeros_like",
]

Array: TypeAlias = NDArray[Any]

shape_of = attrgetter("shape")


def concat(tensors: Sequence[Array], axis: int) -> Array:
    """Join arrays along an axis that they have."""
    return np.concatenate(tensors, axis=axis)


def stack(tensors: Sequence[Array], axis: int) -> Array:
    """Join arrays along a new axis."""
    return np.stack(tensors, axis=axis)


def expand_dims(tensor: Array, axis: int) -> Array:
    """Insert an axis of length 1 into an array."""
    return np.expand_dims(tensor, axis)


def squeeze(tensor: Array, axis: int | None) -> Array:
    """Take an axis of length 1, or all of them, out of an array."""
    return np.squeeze(tensor, axis)


def constant(array: Array, like: Array) -> Array:
    """Make a tensor of an array, on the device of another tensor, for later steps as well."""
    return array


def from_numpy(array: Array, like: Array) -> Array:
    """Take an array as it is."""
    del like
    return array


def get_shape(tensor: Array) -> tuple[int, ...]:
    """Read the shape of an array."""
    return tensor.shape


def zeros(shape: Sequence[int], like: Array, dtype: str | None) -> Array:
    """Make an array of zeros, of the type of another one unless a type is given."""
    return np.zeros(tuple(shape), dtype=like.dtype if dtype is None else dtype)


def zeros_like(tensor: Array, dtype: DTypeLike | None) -> Array:
    """Make zeros of the shape of an array."""
    return np.zeros_like(tensor, dtype=dtype)


def is_integral(tensor: Array) -> bool:
    """Return whether an array holds ints or booleans."""
    return tensor.dtype.kind in "iub"


def slices_along(tensor: Array, axis: int) -> list[Array]:
    """View each position of an axis as an array without that axis."""
    moved = np.moveaxis(tensor, axis, 0)
    # the ellipsis keeps what is left of a one-axis array an array
    return [moved[position, ...] for position in range(len(moved))]


def pad_ends(tensor: Array, amounts: Sequence[int], mirror: bool, value: float) -> Array:
    """Lengthen each axis at its end by copies of a value, or by what stands before it."""
    if not any(amounts):
        return tensor
    widths = [(0, amount) for amount in amounts]
    if mirror:
        return np.pad(tensor, widths, mode="reflect")
    return np.pad(tensor, widths, mode="constant", constant_values=value)


def convert(value: Any) -> Any:
    """Turn a value into an array, unless it is one; strings and None stay as they are."""
    if value is None or isinstance(value, (str, bytes, np.ndarray)):
        return value
    return to_number(value)


def cast(tensor: Any, dtype: Any) -> Array:
    """Make an array of another type of a value."""
    return np.array(_array(tensor), dtype=dtype_of(dtype))


def cast_like(value: Any, like: Array) -> Array:
    """Make an array of the type of another one of a value."""
    return np.array(_array(value), dtype=like.dtype)


def flip(tensor: Array, axis: Sequence[int]) -> Array:
    """Turn axes round."""
    return np.flip(tensor, tuple(axis))


def gather(tensor: Array, indices: Any) -> Array:
    """Take entries of the first axis."""
    taken: Array = np.take(tensor, _indices(indices), axis=0)
    return taken


def gather_from_batch(tensor: Array, indices: Any) -> Array:
    """Take an entry of the second axis for each one of the first."""
    taken: Array = tensor[np.arange(tensor.shape[0]), _indices(indices)]
    return taken


def get_image_dims(tensor: Array) -> tuple[int, int, int]:
    """Read the channels, height and width of an image, or of a batch of them."""
    height, width, channels = tensor.shape[-3:]
    return channels, height, width


def ones_like(tensor: Array, dtype: DTypeLike | None) -> Array:
    """Make ones of the shape of an array."""
    return np.ones_like(tensor, dtype=dtype)


def permute(tensor: Array, permutation: Sequence[int]) -> Array:
    """Put the axes into another order."""
    return np.transpose(tensor, tuple(permutation))


def reshape(tensor: Array, shape: Sequence[int]) -> Array:
    """Reshape an array."""
    return np.reshape(tensor, tuple(shape))


def roll(tensor: Array, shift: int | Sequence[int], axis: int | Sequence[int]) -> Array:
    """Shift entries along axes; those that leave come in at the other end."""
    return np.roll(tensor, shift, axis)


def settled_shape(shape: Sequence[int]) -> Sequence[int]:
    """Make of a shape what `reshape` takes, for all steps."""
    return shape


def settled_order(permutation: Sequence[int]) -> Sequence[int]:
    """Make of an order of axes what `permute` takes, for all steps."""
    return permutation


def transpose(tensor: Array) -> Array:
    """Turn the order of the axes round."""
    return np.transpose(tensor)


def where(condition: Array, yes: Any, no: Any) -> Array:
    """Take each element from one of two arrays or numbers."""
    chosen: Array = np.where(condition, yes, no)
    return chosen


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Find the type of a name, such as "float32"."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise ValueError(
            f"numpy has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'."
        ) from None
    return found


def _array(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else to_number(value)


def _indices(indices: Any) -> Array:
    places: Array = np.squeeze(_array(indices)).astype("int64")
    return places
