"""Shapes, joins, slices and conversions of torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis that they have."""
    return torch.cat(list(tensors), dim=axis)


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along a new axis."""
    return torch.stack(list(tensors), dim=axis)


def expand_dims(tensor: Tensor, axis: int) -> Tensor:
    """Give a tensor a new axis of length 1."""
    return tensor.unsqueeze(axis)


def squeeze(tensor: Tensor, axis: int | None) -> Tensor:
    """Take an axis of length 1, or all of them, out of a tensor."""
    return tensor.squeeze() if axis is None else tensor.squeeze(axis)


def from_numpy(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Make a tensor of an array, on the device of another tensor."""
    return torch.from_numpy(array).to(like.device)


def get_shape(tensor: Tensor) -> tuple[int, ...]:
    """Read the shape of a tensor."""
    return tensor.shape


def zeros(shape: Sequence[int], like: Tensor, dtype: str | None) -> Tensor:
    """Make a tensor of zeros on the device of another one, and of its type unless one is given."""
    return torch.zeros(tuple(shape), dtype=_dtype(dtype) or like.dtype, device=like.device)


def zeros_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    """Make zeros of the shape of a tensor."""
    return torch.zeros_like(tensor, dtype=_dtype(dtype))


def is_integral(tensor: Tensor) -> bool:
    """Tell whether a tensor holds ints or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def reduce_mean(tensor: Tensor, axis: Sequence[int] | None, keepdims: bool) -> Tensor:
    """Average a tensor over some axes, or over all of them."""
    if axis is None:
        if not keepdims:
            return tensor.mean()
        axis = range(tensor.dim())
    # an axis at a time, the last first: FastEstimator's order, which decides the last bit
    ordered = sorted(axis, reverse=True)
    for each in ordered:
        tensor = tensor.mean(dim=each, keepdim=True)
    return tensor if keepdims or not ordered else tensor.squeeze(tuple(ordered))


def slices_along(tensor: Tensor, axis: int) -> list[Tensor]:
    """View each position of an axis as a tensor without that axis."""
    # unbind would be faster, but autograd forbids writing into what it returns
    return [tensor.select(axis, position) for position in range(tensor.shape[axis])]


def pad_ends(tensor: Tensor, amounts: Sequence[int], mirror: bool, value: float) -> Tensor:
    """Lengthen each axis at its end by copies of a value, or by what stands before it."""
    if not any(amounts):
        return tensor
    if not mirror:
        widths = [width for amount in reversed(amounts) for width in (0, amount)]
        return torch.nn.functional.pad(tensor, widths, mode="constant", value=value)
    # indexing, since torch's own reflection rounds large ints and stops at five axes
    for axis, amount in enumerate(amounts):
        if amount:
            size = tensor.shape[axis]
            order = [*range(size), *range(size - 2, size - 2 - amount, -1)]
            tensor = tensor.index_select(axis, torch.tensor(order, device=tensor.device))
    return tensor


def convert(value: Any, shared_memory: bool = False) -> Any:
    """Turn a value into a tensor, unless it is one; strings and None stay as they are."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Tensor):
        tensor = value
    else:
        array = to_number(value)
        if array.dtype.kind in "SU":
            return array
        if array.dtype.kind == "O":
            raise TypeError(
                f"A value of type {type(value).__name__} has no tensor of its own in torch: numpy "
                "makes an array of Python objects of it. Convert it to numbers first."
            )
        tensor = torch.from_numpy(array)
    if shared_memory:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no type of the name {dtype!r}. Try 'float32' or 'int64'.")
    return found
