"""Creating, converting, joining, slicing and reshaping torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastnet.backend.foreign import NUMPY, adopter, array_of
from fastnet.errors import shorten
from fastnet.util.tensors import to_number

__all__ = [
    "ARRAYS",
    "FOREIGN",
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
    """Concatenate tensors along an existing axis."""
    return torch.cat(list(tensors), dim=axis)


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Stack tensors along a new axis."""
    return torch.stack(list(tensors), dim=axis)


def expand_dims(tensor: Tensor, axis: int) -> Tensor:
    """Insert an axis of length 1."""
    return tensor.unsqueeze(axis)


def squeeze(tensor: Tensor, axis: int | None) -> Tensor:
    """Remove an axis of length 1, or all of them."""
    return tensor.squeeze() if axis is None else tensor.squeeze(axis)


def constant(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor on the device of a given tensor, for use in several steps."""
    # Autograd cannot use tensors that were created in inference mode.
    with torch.inference_mode(False):
        return torch.from_numpy(array).to(like.device)


def from_numpy(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor on the device of a given tensor."""
    return torch.from_numpy(array).to(like.device)


def get_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tensor.shape


def zeros(shape: Sequence[int], like: Tensor, dtype: str | None) -> Tensor:
    """Return zeros on the device of another tensor, of its dtype unless one is given."""
    return torch.zeros(tuple(shape), dtype=dtype_of(dtype) or like.dtype, device=like.device)


def zeros_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    """Return zeros of the shape of a tensor."""
    return torch.zeros_like(tensor, dtype=dtype_of(dtype))


def is_integral(tensor: Tensor) -> bool:
    """Return whether a tensor holds integers or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def slices_along(tensor: Tensor, axis: int) -> list[Tensor]:
    """Return views of a tensor at each index of an axis, without that axis."""
    # Autograd forbids in-place writes to the results of the faster `unbind`.
    return [tensor.select(axis, position) for position in range(tensor.shape[axis])]


def pad_ends(tensor: Tensor, amounts: Sequence[int], mirror: bool, value: float) -> Tensor:
    """Pad the end of each axis with a value, or by reflection."""
    if not any(amounts):
        return tensor
    if not mirror:
        widths = [width for amount in reversed(amounts) for width in (0, amount)]
        return torch.nn.functional.pad(tensor, widths, mode="constant", value=value)
    # torch's reflection padding rounds large integers and supports at most five axes.
    for axis, amount in enumerate(amounts):
        if amount:
            size = tensor.shape[axis]
            order = [*range(size), *range(size - 2, size - 2 - amount, -1)]
            tensor = tensor.index_select(axis, torch.tensor(order, device=tensor.device))
    return tensor


def convert(value: Any, shared_memory: bool = False) -> Any:
    """Convert a value to a tensor; strings and None are returned as they are."""
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
    """Convert a tensor to a dtype."""
    return tensor.to(dtype_of(dtype))


def cast_like(value: Any, like: Tensor) -> Tensor:
    """Convert a value to the dtype of a tensor, and an array or number to its device as well."""
    if isinstance(value, Tensor):
        return value if value.dtype is like.dtype else value.to(like.dtype)
    return torch.as_tensor(to_number(value), dtype=like.dtype, device=like.device)


def flip(tensor: Tensor, axis: Sequence[int]) -> Tensor:
    """Reverse a tensor along axes."""
    return tensor.flip(tuple(axis))


def gather(tensor: Tensor, indices: Any) -> Tensor:
    """Index the first axis of a tensor."""
    return tensor[_indices(indices, tensor)]


def gather_from_batch(tensor: Tensor, indices: Any) -> Tensor:
    """Index the second axis of a tensor, with one index for each element of the first."""
    device = tensor.device
    if not (
        getattr(indices, "dtype", None) is torch.int64
        and indices.dim() == 1
        and (indices.is_cpu or indices.device == device)
    ):
        indices = _indices(indices, tensor)
    return tensor[torch.arange(tensor.shape[0], device=device), indices]


def get_image_dims(tensor: Tensor) -> tuple[int, int, int]:
    """Return the channels, height and width of an image or a batch of images."""
    channels, height, width = tensor.shape[-3:]
    return channels, height, width


def ones_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    """Return ones of the shape of a tensor."""
    return torch.ones_like(tensor, dtype=dtype_of(dtype))


def permute(tensor: Tensor, permutation: Sequence[int]) -> Tensor:
    """Permute the axes of a tensor."""
    return tensor.permute(tuple(permutation))


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape a tensor."""
    return tensor.reshape(tuple(shape))


def roll(tensor: Tensor, shift: Any, axis: Any) -> Tensor:
    """Roll a tensor along its axes."""
    return tensor.roll(shift, axis)


def settled_shape(shape: Sequence[int]) -> Sequence[int]:
    """Return a shape as `reshape` takes it, converted once for all steps."""
    return shape


def settled_order(permutation: Sequence[int]) -> Sequence[int]:
    """Return a permutation as `permute` takes it, converted once for all steps."""
    return permutation


def transpose(tensor: Tensor) -> Tensor:
    """Reverse the order of the axes."""
    # `tensor.T` is deprecated for other tensors than matrices.
    return tensor.permute(tuple(range(tensor.dim() - 1, -1, -1)))


def where(condition: Tensor, yes: Any, no: Any) -> Tensor:
    """Select elements by a condition. The first tensor gives its dtype to the other value."""
    if isinstance(yes, Tensor):
        no = cast_like(no, yes)
    elif isinstance(no, Tensor):
        yes = cast_like(yes, no)
    return torch.where(condition, yes, no)


def random_normal_like(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str | torch.dtype | None = "float32",
) -> Tensor:
    """Sample from a normal distribution, with the shape and device of a tensor."""
    return torch.randn_like(tensor, dtype=dtype_of(dtype)) * std + mean


def random_uniform_like(
    tensor: Tensor,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: str | torch.dtype | None = "float32",
) -> Tensor:
    """Sample from a uniform distribution, with the shape and device of a tensor."""
    return torch.rand_like(tensor, dtype=dtype_of(dtype)) * (maxval - minval) + minval


def dtype_of(dtype: Any) -> torch.dtype | None:
    """Return a dtype by its name, such as "float32"."""
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


def _adopt(value: Any) -> Tensor | None:
    """Convert a tensor of another framework, or an array; None for strings and objects."""
    array = array_of(value)
    try:
        if array is None:
            # The other framework may still write to the memory that it shares.
            return torch.from_dlpack(value).clone()  # type: ignore[attr-defined]
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
        return torch.from_numpy(array)
    except Exception:  # The array holds strings or objects.
        return None


FOREIGN = adopter((Tensor, *NUMPY), _adopt)
"""Converts tensors of other frameworks."""

ARRAYS = adopter((Tensor,), _adopt)
"""Converts tensors of other frameworks, and numpy arrays."""
