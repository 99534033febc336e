"""The Lambert W function of torch tensors, with its derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastnet.backend.lambert import Functions, slope, solve

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
        found: Tensor = solve(wide, _digits(z), _FUNCTIONS).to(z.dtype)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (of_w,) = gradients
        if of_w is None:  # SuperLoss defines its own gradient.
            return None
        z, w = ctx.saved_tensors
        if w.dtype in _HALVES:
            z, w = z.float(), w.float()
        gradient: Tensor = of_w * slope(z, w, _digits(z), _FUNCTIONS).to(of_w.dtype)
        return gradient


def _digits(tensor: Tensor) -> int:
    """Return the number of mantissa bits to compute with."""
    return 53 if tensor.dtype is torch.float64 else 24
