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

shape_of = get_shape = attrgetter("shape")
concat, stack, expand_dims = torch.cat, torch.stack, torch.unsqueeze
flip, permute, reshape, roll = torch.flip, torch.permute, torch.reshape, torch.roll

prepare_shape = prepare_permutation = tuple
"""Converts a shape for `reshape`, or a permutation for `permute`, once for all steps."""


def squeeze(tensor: Tensor, axis: int | None) -> Tensor:
    return tensor.squeeze() if axis is None else tensor.squeeze(axis)


def constant(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    # Autograd cannot use tensors that were created in inference mode.
    with torch.inference_mode(False):
        return torch.from_numpy(array).to(like.device)


def zeros(shape: Sequence[int], like: Tensor, dtype: str | None) -> Tensor:
    return torch.zeros(tuple(shape), dtype=dtype_of(dtype) or like.dtype, device=like.device)


def zeros_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    return torch.zeros_like(tensor, dtype=dtype_of(dtype))


def is_integral(tensor: Tensor) -> bool:
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
                f"A value of type {type(value).__name__} cannot be converted to a torch tensor, "
                "because numpy makes an array of Python objects of it. Convert it to numbers first."
            )
        tensor = torch.from_numpy(array)
    if shared_memory:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def cast(tensor: Tensor, dtype: str | torch.dtype) -> Tensor:
    return tensor.to(dtype_of(dtype))


def cast_like(value: Any, like: Tensor) -> Tensor:
    """Convert a value to the dtype of a tensor, and an array or number to its device as well."""
    if isinstance(value, Tensor):
        return value if value.dtype is like.dtype else value.to(like.dtype)
    return torch.as_tensor(to_number(value), dtype=like.dtype, device=like.device)


def gather(tensor: Tensor, indices: Any) -> Tensor:
    return tensor[_indices(indices, tensor)]


def gather_from_batch(tensor: Tensor, indices: Any) -> Tensor:
    device = tensor.device
    if not (
        getattr(indices, "dtype", None) is torch.int64
        and indices.dim() == 1
        and (indices.is_cpu or indices.device == device)
    ):
        indices = _indices(indices, tensor)
    return tensor[torch.arange(tensor.shape[0], device=device), indices]


def ones_like(tensor: Tensor, dtype: str | torch.dtype | None) -> Tensor:
    return torch.ones_like(tensor, dtype=dtype_of(dtype))


def transpose(tensor: Tensor) -> Tensor:
    # `tensor.T` is deprecated for other tensors than matrices.
    return tensor.permute(tuple(range(tensor.dim() - 1, -1, -1)))


def where(condition: Tensor, yes: Any, no: Any) -> Tensor:
    """Select elements by a condition. The first tensor gives its dtype to an array or tensor."""
    if isinstance(yes, Tensor) and not isinstance(no, (int, float)):
        no = cast_like(no, yes)
    elif isinstance(no, Tensor) and not isinstance(yes, (int, float)):
        yes = cast_like(yes, no)
    return torch.where(condition, yes, no)


def random_normal_like(tensor: Tensor, mean: float, std: float, dtype: Any) -> Tensor:
    return torch.randn_like(tensor, dtype=dtype_of(dtype)) * std + mean


def random_uniform_like(tensor: Tensor, minval: float, maxval: float, dtype: Any) -> Tensor:
    return torch.rand_like(tensor, dtype=dtype_of(dtype)) * (maxval - minval) + minval


def dtype_of(dtype: Any) -> torch.dtype | None:
    """Return a dtype by its name, such as "float32"."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(torch_dtype, torch.dtype):
        raise ValueError(f"torch has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'.")
    return torch_dtype


def _indices(indices: Any, tensor: Tensor) -> Tensor:
    if not isinstance(indices, Tensor):
        indices = torch.as_tensor(to_number(indices))
    squeezed: Tensor = indices.squeeze().to(device=tensor.device, dtype=torch.int64)
    return squeezed


def _adopt(value: Any) -> Tensor | float | None:
    """Convert a tensor of another framework, or an array; None for strings and objects."""
    if isinstance(value, np.float64):
        return float(value)  # A float64 tensor would widen a scalar loss.
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
