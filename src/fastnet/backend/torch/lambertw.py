"""Lambert's W function of torch tensors, with its derivative."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastnet.backend.numpy.lambertw import ENDS, NEAR, series

__all__ = ["lambertw"]

# Iterations by mantissa bits: each triples the correct bits, and the first guess has six.
ROUNDS = {24: 2, 53: 3}

_HALVES = (torch.float16, torch.bfloat16)


def lambertw(tensor: Tensor) -> Tensor:
    """Solve w * exp(w) = z for w on the principal branch; NaN where there is no solution."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _LambertW.forward(tensor)
    result: Tensor = _LambertW.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _LambertW(torch.autograd.Function):
    """W, with the derivative that follows from its definition."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        small = z.dtype in _HALVES
        return _solve(z.float()).to(z.dtype) if small else _solve(z)

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
            above = 1 + w
        else:
            root = _root(z)
            above = torch.where(root < NEAR[_digits(w)], series(root), 1 + w)
        # The slope is finite at the branch point, so that a gradient of 0 stays 0.
        slope = (-w).exp() / above.clamp(min=torch.finfo(w.dtype).eps)
        gradient: Tensor = of_w * slope
        return gradient


def _solve(z: Tensor) -> Tensor:
    digits = _digits(z)
    # A rounded -1/e counts as the branch point.
    room = 4 * torch.finfo(z.dtype).eps
    root = _root(z)
    near = series(root) - 1
    log = z.clamp(min=-0.3).log1p()
    far = log * (1 - log.log1p() / (2 + log))
    w = torch.where(z < -0.2649, near, far)
    for _ in range(ROUNDS[digits]):
        # Halley's method, in a form that does not overflow.
        error = w - z * (-w).exp()
        bottom = 2 * (w + 1) ** 2 - (w + 2) * error
        w = w - 2 * (w + 1) * error / torch.where(bottom == 0, 1, bottom)
    # Halley's method loses its precision near the branch point, so the series is used there.
    w = torch.where(root < NEAR[digits], near, w)
    w = torch.where(z == math.inf, z, w)
    return torch.where(z < -(1 + room) / math.e, math.nan, w)


def _root(z: Tensor) -> Tensor:
    """Return the square root of 2 e times the distance of z from the branch point."""
    end, rest = ENDS[_digits(z)]
    above = (z - end) * (2 * math.e) - rest * 2 * math.e
    # The derivative of the square root is infinite at 0.
    return above.clamp(min=torch.finfo(z.dtype).eps ** 2 / 4).sqrt()


def _digits(tensor: Tensor) -> int:
    """Return the number of mantissa bits of a dtype."""
    return 53 if tensor.dtype is torch.float64 else 24
