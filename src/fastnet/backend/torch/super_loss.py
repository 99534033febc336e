"""The sample weights of SuperLoss, and the moving average of its threshold, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastnet.backend.lambert import LOG_CONFIDENCE_AT_MIN, MIN_BETA
from fastnet.backend.torch.math import lambertw


class MovingAverage:
    """An exponential moving average of scalars."""

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate
        self._mean: Tensor | None = None

    def update(self, value: Tensor, may_initialize: bool) -> Tensor:
        """Include a scalar and return the detached average.

        Args:
            value: The scalar.
            may_initialize: Whether this value may start the average.
        """
        value = value.detach()
        # An average that was loaded has the default device and dtype.
        last = self._mean if self._mean is None else self._mean.to(value)
        mean = value if last is None else last - self._rate * (last - value)
        if last is None or last is not self._mean:
            if may_initialize or last is not None:
                # Later steps could not write to a tensor of inference mode.
                with torch.inference_mode(False):
                    self._mean = mean.clone()
        else:
            # In place, so that a compiled step, which cannot assign a tensor, does the same.
            self._mean.copy_(mean)
        return mean

    @property
    def value(self) -> float | None:
        """The average, or None before the first value."""
        return None if self._mean is None else float(self._mean)

    @value.setter
    def value(self, value: float | None) -> None:
        self._mean = None if value is None else torch.tensor(value, dtype=torch.float64)


def weigh(excess: Tensor, regularization: float) -> tuple[Tensor, Tensor]:
    """Weigh the excess of losses over the threshold by the confidence in them; return both."""
    beta = excess if regularization == 1 else excess / regularization
    # W is steep at its cut-off, so the value there is a constant and not a rounded result.
    log = torch.where(
        beta < MIN_BETA, LOG_CONFIDENCE_AT_MIN, -lambertw(0.5 * beta.clamp(min=MIN_BETA))
    )
    confidence = log.exp()
    if not (excess.requires_grad and torch.is_grad_enabled()):
        return _Weighed.forward(excess, confidence, log, regularization), confidence
    weighed: Tensor = _Weighed.apply(  # type: ignore[no-untyped-call]
        excess, confidence, log, regularization
    )
    return weighed, confidence


class _Weighed(torch.autograd.Function):
    """The minimum of the weighed loss over confidences, whose gradient is the confidence.

    The derivative with respect to the confidence is 0 at the minimum. Rounding would leave more
    than 1e-4 of it where the confidence is steep, so it is left out.
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
