"""Confidence weights of SuperLoss on torch tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastnet.backend.numpy.lambertw import LEAST, LEAST_LOG
from fastnet.backend.torch.lambertw import lambertw

__all__ = ["weigh"]


def weigh(excess: Tensor, regularization: float) -> tuple[Tensor, Tensor]:
    """Weigh losses by the confidence in them."""
    beta = excess if regularization == 1 else excess / regularization
    # steep where it is cut off, so that a rounded end would not do
    log = torch.where(beta < LEAST, LEAST_LOG, -lambertw(0.5 * beta.clamp(min=LEAST)))
    confidence = log.exp()
    if not (excess.requires_grad and torch.is_grad_enabled()):
        return _Weighed.forward(excess, confidence, log, regularization), confidence
    weighed: Tensor = _Weighed.apply(  # type: ignore[no-untyped-call]
        excess, confidence, log, regularization
    )
    return weighed, confidence


class _Weighed(torch.autograd.Function):
    """The least that confidences can make of losses.

    Its slope by the confidence is 0, of which rounding would leave more than a ten-thousandth
    where the confidence is steep; what is left is the confidence itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(excess: Tensor, confidence: Tensor, log: Tensor, regularization: float) -> Tensor:
        squared = log**2
        if regularization != 1:
            squared = regularization * squared
        return excess * confidence + squared

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor
    ) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (confidence,) = ctx.saved_tensors
        return gradients[0] * confidence, None, None, None
