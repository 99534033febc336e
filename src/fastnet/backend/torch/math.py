"""Elementwise functions and products of torch tensors."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

add, multiply, divide = operator.add, operator.mul, operator.truediv
abs, exp, sign, tensor_round, tensor_sqrt = (
    torch.abs,
    torch.exp,
    torch.sign,
    torch.round,
    torch.sqrt,
)
matmul, maximum, pow = torch.matmul, torch.maximum, torch.pow


def argmax(tensor: Tensor, axis: int) -> Tensor:
    # `torch.argmax` does not support booleans.
    return tensor.max(axis)[1] if tensor.dtype is torch.bool else tensor.argmax(axis)


def check_nan(val: Tensor) -> Tensor:
    return val.isfinite().logical_not().any()


def clip_by_value(
    tensor: Tensor, min_value: float | Tensor | None, max_value: float | Tensor | None
) -> Tensor:
    if isinstance(min_value, Tensor) or isinstance(max_value, Tensor):
        min_value, max_value = _bound(min_value, tensor), _bound(max_value, tensor)
    return tensor.clamp(min_value, max_value)  # type: ignore[arg-type]


def zscore(data: Tensor, epsilon: float) -> Tensor:
    data = data.float()
    return (data - data.mean()) / data.std(unbiased=False).clamp(min=epsilon)


def _bound(value: Any, tensor: Tensor) -> Tensor | None:
    """Convert a bound to a tensor on the device, without gradient or synchronization."""
    if value is None:
        return None
    # A bound must not change the precision of the result.
    dtype = tensor.dtype if tensor.is_floating_point() else None
    if isinstance(value, Tensor):
        bound: Tensor = value.detach() if value.requires_grad else value
        if bound.dtype is tensor.dtype and bound.device == tensor.device:
            return bound
        return bound.to(device=tensor.device, dtype=dtype)
    return torch.as_tensor(value, device=tensor.device, dtype=dtype)
