"""Functions of the elements of torch tensors, and products."""

from __future__ import annotations

from operator import add, mul, truediv
from typing import Any

import torch
from torch import Tensor

from fastnet.backend.torch.lambertw import lambertw

__all__ = [
    "abs",
    "add",
    "argmax",
    "check_nan",
    "clip_by_value",
    "code_probabilities",
    "divide",
    "exp",
    "lambertw",
    "matmul",
    "maximum",
    "multiply",
    "pow",
    "sign",
    "tensor_round",
    "tensor_sqrt",
    "zscore",
]

# operators by the names of functions, which some frameworks have that are faster
multiply, divide = mul, truediv


def abs(tensor: Tensor) -> Tensor:
    """Take absolute values."""
    return tensor.abs()


def argmax(tensor: Tensor, axis: int) -> Tensor:
    """Find where along an axis the largest value is, the first of several."""
    # torch's own argmax takes no booleans
    return tensor.max(axis)[1] if tensor.dtype is torch.bool else tensor.argmax(axis)


def check_nan(val: Tensor) -> Tensor:
    """Return whether any value is NaN or infinite."""
    return val.isfinite().logical_not().any()


def clip_by_value(
    tensor: Tensor, min_value: float | Tensor | None, max_value: float | Tensor | None
) -> Tensor:
    """Move values that lie outside an interval to its ends."""
    if isinstance(min_value, Tensor) or isinstance(max_value, Tensor):
        min_value, max_value = _bound(min_value, tensor), _bound(max_value, tensor)
    return tensor.clamp(min_value, max_value)  # type: ignore[arg-type]


def code_probabilities(tensor: Tensor, codes: Tensor, least: Tensor) -> Tensor:
    """Find how likely each of some codes is, the nearer the likelier."""
    distances = (tensor.unsqueeze(1) - codes).abs().sum(-1)
    if least.dtype is not distances.dtype:
        least = least.to(distances.dtype)
    closeness = torch.maximum(distances, least).reciprocal()
    return closeness / closeness.sum(-1, keepdim=True)


def exp(tensor: Tensor) -> Tensor:
    """Raise e to each element."""
    return tensor.exp()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices, or stacks of them."""
    return a.matmul(b)


def maximum(tensor1: Tensor, tensor2: Tensor) -> Tensor:
    """Take the larger of each two elements."""
    return torch.maximum(tensor1, tensor2)


def pow(tensor: Tensor, power: float | Tensor) -> Tensor:
    """Raise each element to a power."""
    return tensor.pow(power)


def sign(tensor: Tensor) -> Tensor:
    """Return the sign of each element: -1, 0 or 1."""
    return tensor.sign()


def tensor_round(tensor: Tensor) -> Tensor:
    """Round each element, halves to the even number."""
    return tensor.round()


def tensor_sqrt(tensor: Tensor) -> Tensor:
    """Take square roots."""
    return tensor.sqrt()


def zscore(data: Tensor, epsilon: float) -> Tensor:
    """Shift and scale a tensor to mean 0 and standard deviation 1."""
    data = data.float()
    return (data - data.mean()) / data.std(unbiased=False).clamp(min=epsilon)


def _bound(value: Any, tensor: Tensor) -> Tensor | None:
    """Make a tensor of a bound that needs no answer from the device, and has no gradient."""
    if value is None:
        return None
    # a number, however it comes, decides no precision
    dtype = tensor.dtype if tensor.is_floating_point() else None
    if isinstance(value, Tensor):
        bound: Tensor = value.detach() if value.requires_grad else value
        if bound.dtype is tensor.dtype and bound.device == tensor.device:
            return bound
        return bound.to(device=tensor.device, dtype=dtype)
    return torch.as_tensor(value, device=tensor.device, dtype=dtype)
