"""Elementwise functions and products of torch tensors."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from fastnet.backend.lambert import Functions, slope, solve

add, multiply, divide = operator.add, operator.mul, operator.truediv
abs, exp, sign, tensor_round = torch.abs, torch.exp, torch.sign, torch.round
matmul, maximum, pow, tensor_sqrt = torch.matmul, torch.maximum, torch.pow, torch.sqrt
reciprocal = torch.reciprocal


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


_FUNCTIONS = Functions(torch.exp, torch.log1p, torch.sqrt, torch.clamp, torch.where)
_HALVES = (torch.float16, torch.bfloat16)


def lambertw(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        tensor = tensor.float()
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _LambertW.forward(tensor)
    result: Tensor = _LambertW.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _LambertW(torch.autograd.Function):
    """The function, with the derivative that follows from its definition."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        wide = z.float() if z.dtype in _HALVES else z
        result: Tensor = solve(wide, _mantissa_bits(z), _FUNCTIONS).to(z.dtype)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (gradient_of_w,) = gradients
        if gradient_of_w is None:  # SuperLoss defines its own gradient.
            return None
        z, w = ctx.saved_tensors
        if w.dtype in _HALVES:
            z, w = z.float(), w.float()
        derivative = slope(z, w, _mantissa_bits(z), _FUNCTIONS).to(gradient_of_w.dtype)
        gradient: Tensor = gradient_of_w * derivative
        return gradient


def _mantissa_bits(tensor: Tensor) -> int:
    """Return the number of mantissa bits to compute with."""
    return 53 if tensor.dtype is torch.float64 else 24
