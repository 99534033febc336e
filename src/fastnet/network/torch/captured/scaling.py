"""Scaled losses: what a captured step does of a `GradScaler`'s doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastnet.backend.torch._internals import scaler_tensors
from fastnet.backend.torch.gradients import owned
from fastnet.network.torch.captured.observing import Uncapturable

__all__ = ["RefusedScaler", "ScalerInTrace", "numbers_of", "tensors_of"]


def tensors_of(scaler: Any) -> list[torch.Tensor]:
    """List what a scaler remembers: its scale, and for how many steps in a row all was finite.

    Args:
        scaler: The scaler, None for none.

    Raises:
        Uncapturable: If it is not torch's own, or remembers nothing yet.
    """
    if scaler is None:
        return []
    if type(scaler) is not torch.amp.GradScaler:
        raise Uncapturable(f"the loss is scaled by a {type(scaler).__name__}")
    if not scaler.is_enabled():
        raise Uncapturable("the loss is scaled by a scaler that is not enabled")
    found = scaler_tensors(scaler)
    if found is None:
        raise Uncapturable("what the scaler of the loss remembers is out of reach")
    return found


def numbers_of(scaler: Any) -> list[float]:
    """List the numbers that a scaler goes by.

    Args:
        scaler: The scaler, None for none.
    """
    if scaler is None:
        return []
    return [
        float(scaler.get_growth_factor()),
        float(scaler.get_backoff_factor()),
        float(scaler.get_growth_interval()),
    ]


class ScalerInTrace:
    """Stands for a scaler while ops are traced.

    Args:
        remembered: Tensors in the places of what it remembers.
        numbers: The numbers of all optimizers and scalers, and the place of the first of its own.
        update: Takes the optimizer's step, but where it is given a tensor that is True.
    """

    def __init__(
        self,
        remembered: list[torch.Tensor],
        numbers: tuple[torch.Tensor, int],
        update: Callable[[torch.Tensor | None], None],
    ) -> None:
        self._scale, self._tracker = remembered
        self._numbers = numbers
        self._update = update
        self._overflown: torch.Tensor | None = None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a loss."""
        return loss * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """Scale the gradients down, and see whether all of them are finite."""
        inverse = self._scale.double().reciprocal().float()
        overflown = torch.zeros((), dtype=torch.bool)
        for parameter in owned(optimizer):
            if parameter.grad is not None:
                of = parameter.grad.layout, parameter.grad.dtype
                if of[0] is not torch.strided or of[1] is torch.float16:
                    raise Uncapturable(f"a scaled gradient is of {of[1]}, {of[0]}")
                overflown = overflown | ~parameter.grad.isfinite().all()
                parameter.grad = parameter.grad * inverse.to(parameter.grad.dtype)
        self._overflown = overflown

    def step(self, optimizer: Any) -> None:
        """Take the optimizer's step, unless a gradient has overflown."""
        if self._overflown is None:
            self.unscale_(optimizer)
        self._update(self._overflown)

    @torch.no_grad()
    def update(self) -> None:
        """Go on with the scale: less after an overflow, more after many steps without one."""
        overflown = self._overflown
        assert overflown is not None
        numbers, first = self._numbers
        growth, backoff, interval = (numbers[first + at] for at in range(3))
        count = self._tracker + 1
        is_time = count == interval
        more = (self._scale * growth).to(self._scale.dtype)
        grown = torch.where(is_time & more.isfinite(), more, self._scale)
        less = (self._scale * backoff).to(self._scale.dtype)
        zero = torch.zeros_like(count)
        self._scale.copy_(torch.where(overflown, less, grown))
        self._tracker.copy_(torch.where(overflown | is_time, zero, count))
        self._overflown = None

    def get_scale(self) -> torch.Tensor:
        """Return the scale as it is now."""
        return self._scale.clone()


class RefusedScaler:
    """Stands for a scaler that a captured step cannot do the doing of.

    Args:
        reason: Why not.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Refuse to scale a loss."""
        raise Uncapturable(self._reason)

    def unscale_(self, optimizer: Any) -> None:
        """Refuse to scale gradients down."""
        raise Uncapturable(self._reason)
