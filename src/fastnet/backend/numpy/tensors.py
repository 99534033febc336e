"""Shapes, joins, slices and conversions of numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

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

Array: TypeAlias = NDArray[Any]


def concat(tensors: Sequence[Array], axis: int) -> Array:
    """Join arrays along an axis that they have."""
    return np.concatenate(tensors, axis=axis)


def stack(tensors: Sequence[Array], axis: int) -> Array:
    """Join arrays along a new axis."""
    return np.stack(tensors, axis=axis)


def expand_dims(tensor: Array, axis: int) -> Array:
    """Give an array a new axis of length 1."""
    return np.expand_dims(tensor, axis)


def squeeze(tensor: Array, axis: int | None) -> Array:
    """Take an axis of length 1, or all of them, out of an array."""
    return np.squeeze(tensor, axis)


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
    """Tell whether an array holds ints or booleans."""
    return tensor.dtype.kind in "iub"


def reduce_mean(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Array:
    """Average an array over some axes, or over all of them."""
    mean: Array = np.mean(tensor, axis=None if axis is None else tuple(axis), keepdims=keepdims)
    return mean


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
