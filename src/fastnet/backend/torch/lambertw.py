"""Lambert's W of torch tensors, and its derivative."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["lambertw"]

# each triples the number of right digits, of which the first guess has two
ROUNDS = 4


def lambertw(tensor: Tensor) -> Tensor:
    """Solve w * exp(w) = z for w, on the upper real branch; NaN where there is none."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _LambertW.forward(tensor)
    result: Tensor = _LambertW.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _LambertW(torch.autograd.Function):
    """W, with the derivative that follows from its definition."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        small = z.dtype in (torch.float16, torch.bfloat16)
        return _solve(z.float()).to(z.dtype) if small else _solve(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        # steep, but not infinite, at the end of the branch: nothing times it stays nothing
        slope = (-w).exp() / (1 + w).clamp(min=torch.finfo(w.dtype).eps)
        gradient: Tensor = gradients[0] * slope
        return gradient


def _solve(z: Tensor) -> Tensor:
    # a rounded -1/e counts as the end of the branch
    room = 4 * torch.finfo(z.dtype).eps
    below = (2 * (1 + math.e * z)).clamp(min=0)
    root = below.sqrt()
    near = -1 + root - below / 3 + 11 / 72 * below * root
    log = z.clamp(min=-0.3).log1p()
    far = log * (1 - log.log1p() / (2 + log))
    w = torch.where(z < -0.2649, near, far)
    for _ in range(ROUNDS):
        # Halley's rule, where nothing overflows
        error = w - z * (-w).exp()
        bottom = 2 * (w + 1) ** 2 - (w + 2) * error
        w = w - 2 * (w + 1) * error / torch.where(bottom == 0, 1, bottom)
    w = torch.where(z == math.inf, z, w)
    return torch.where(z < -(1 + room) / math.e, math.nan, w)
