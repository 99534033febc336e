"""Shapes, joins, slices and conversions of torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

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

shape_of = attrgetter("shape")


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis that they have."""
    return torch.cat(list(tensors), dim=axis)


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along a new axis."""
    return torch.stack(list(tensors), dim=axis)


def expand_dims(tensor: Tensor, axis: int) -> Tensor:
    """Insert an axis of length 1 into a tensor."""
    return tensor.unsqueeze(axis)


def squeeze(tensor: Tensor, axis: int | None) -> Tensor:
    """Take an axis of length 1, or all of them, out of a tensor."""
    return tensor.squeeze() if axis is None else tensor.squeeze(axis)


def constant(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Make a tensor of an array, on the device of another tensor, for later steps as well."""
    # what inference mode makes, no later step could take gradients of
    with torch.inference_mode(False):
        return torch.from_numpy(array).to(like.device)


def from_numpy(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Make a tensor of an array, on the device of another tensor."""
    return torch.from_numpy(array).to(like.device)


def get_shape(tensor: Tensor) -> tuple[int, ...]:
    """Read the shape of a tensor."""
    return tensor.shape


def zeros(shape: Sequence[int], like: Tensor, dtype: str | None) -> Tensor:
    """Make a tensor of zeros on the device of another one, and of its type unless one is given."""
    return torch.zeros(tuple(shape), dtype=dtype_of(dtype) or like.dtype, device=like.device)


def zeros_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    """Make zeros of the shape of a tensor."""
    return torch.zeros_like(tensor, dtype=dtype_of(dtype))


def is_integral(tensor: Tensor) -> bool:
    """Return whether a tensor holds ints or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


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


def cast(tensor: Tensor, dtype: str | torch.dtype) -> Tensor:
    """Convert a tensor to another type."""
    return tensor.to(dtype_of(dtype))


def cast_like(value: Any, like: Tensor) -> Tensor:
    """Convert a value to the type of a tensor; what is no tensor comes onto its device as well."""
    if isinstance(value, Tensor):
        return value if value.dtype is like.dtype else value.to(like.dtype)
    return torch.as_tensor(to_number(value), dtype=like.dtype, device=like.device)


def flip(tensor: Tensor, axis: Sequence[int]) -> Tensor:
    """Turn axes round."""
    return tensor.flip(tuple(axis))


def gather(tensor: Tensor, indices: Any) -> Tensor:
    """Take entries of the first axis."""
    return tensor[_indices(indices, tensor)]


def gather_from_batch(tensor: Tensor, indices: Any) -> Tensor:
    """Take an entry of the second axis for each one of the first."""
    device = tensor.device
    if not (
        getattr(indices, "dtype", None) is torch.int64
        and indices.dim() == 1
        and (indices.is_cpu or indices.device == device)
    ):
        indices = _indices(indices, tensor)
    return tensor[torch.arange(tensor.shape[0], device=device), indices]


def get_image_dims(tensor: Tensor) -> tuple[int, int, int]:
    """Read the channels, height and width of an image, or of a batch of them."""
    channels, height, width = tensor.shape[-3:]
    return channels, height, width


def ones_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    """Make ones of the shape of a tensor."""
    return torch.ones_like(tensor, dtype=dtype_of(dtype))


def permute(tensor: Tensor, permutation: Sequence[int]) -> Tensor:
    """Put the axes into another order."""
    return tensor.permute(tuple(permutation))


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape a tensor."""
    return tensor.reshape(tuple(shape))


def roll(tensor: Tensor, shift: Any, axis: Any) -> Tensor:
    """Shift entries along axes; those that leave come in at the other end."""
    return tensor.roll(shift, axis)


def settled_shape(shape: Sequence[int]) -> Sequence[int]:
    """Make of a shape what `reshape` takes, for all steps."""
    return shape


def settled_order(permutation: Sequence[int]) -> Sequence[int]:
    """Make of an order of axes what `permute` takes, for all steps."""
    return permutation


def transpose(tensor: Tensor) -> Tensor:
    """Turn the order of the axes round."""
    # not `tensor.T`, which torch only wants of matrices
    return tensor.permute(tuple(range(tensor.dim() - 1, -1, -1)))


def where(condition: Tensor, yes: Any, no: Any) -> Tensor:
    """Take each element from one of two tensors or numbers; the second has the first one's type."""
    if isinstance(yes, Tensor):
        no = cast_like(no, yes)
    elif isinstance(no, Tensor):
        yes = cast_like(yes, no)
    return torch.where(condition, yes, no)


def dtype_of(dtype: Any) -> torch.dtype | None:
    """Find the type of a name, such as "float32"."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'.")
    return found


def _indices(indices: Any, tensor: Tensor) -> Tensor:
    if not isinstance(indices, Tensor):
        indices = torch.as_tensor(to_number(indices))
    found: Tensor = indices.squeeze().to(device=tensor.device, dtype=torch.int64)
    return found
