"""Scaled losses: what a captured step does of a `GradScaler`'s doing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fastnet.backend.torch._internals import is_torchs, scaler_records, scaler_tensors
from fastnet.backend.torch.parameters import parameters_in
from fastnet.network.torch.compiled.uncapturable import Uncapturable

__all__ = ["RefusedScaler", "ScalerInTrace", "numbers_of", "tensors_of"]

TakeStep = Callable[[torch.Tensor | None], None]
# which a step calls
_METHODS = ("scale", "unscale_", "step", "update", "get_scale")


def tensors_of(scaler: Any) -> list[torch.Tensor]:
    """List what a scaler remembers: its scale, and for how many steps in a row all was finite."""
    kind = type(scaler)
    if kind is not torch.amp.GradScaler:
        raise Uncapturable(f"the loss is scaled by a {kind.__name__}")
    replaced = [name for name in vars(scaler) if hasattr(kind, name)]
    replaced += [name for name in _METHODS if not is_torchs(getattr(kind, name))]
    if replaced:
        raise Uncapturable(f"`{replaced[0]}` of the scaler of the loss was replaced")
    if not scaler.is_enabled():
        raise Uncapturable("the loss is scaled by a scaler that is not enabled")
    if scaler_records(scaler):
        raise Uncapturable("the scaler of the loss has looked at gradients since its last update")
    found = scaler_tensors(scaler)
    if any(one is None for one in found):
        raise Uncapturable("the scaler of the loss has scaled nothing yet")
    return list(found)


def numbers_of(scaler: Any) -> list[float]:
    """List the numbers that a scaler goes by."""
    return [
        float(scaler.get_growth_factor()),
        float(scaler.get_backoff_factor()),
        float(scaler.get_growth_interval()),
    ]


class ScalerInTrace:
    """Stands for a scaler while ops are traced, whichever optimizers share it.

    Args:
        remembered: The tensors of its state.
        numbers: The numbers of all optimizers and scalers, and the place of the first of its own.
    """

    def __init__(self, remembered: list[torch.Tensor], numbers: tuple[torch.Tensor, int]) -> None:
        self._scale, self._tracker = remembered
        self._numbers = numbers
        self._takes: dict[int, TakeStep] = {}
        # by the ids of optimizers, since the last update
        self._overflown: dict[int, torch.Tensor] = {}
        self._stepped: set[int] = set()

    def scales_for(self, optimizer: Any, take: TakeStep) -> None:
        """Have an optimizer use it."""
        self._takes[id(optimizer)] = take

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a loss."""
        return loss * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """Scale the gradients down, and see whether all of them are finite."""
        if id(optimizer) not in self._takes:
            raise Uncapturable("the scaler of a loss is given another optimizer than its own")
        if id(optimizer) in self._overflown:
            raise Uncapturable("gradients are scaled down a second time")
        inverse = self._scale.double().reciprocal().float()
        overflown: torch.Tensor | None = None
        for parameter in parameters_in(optimizer):
            if parameter.grad is not None:
                of = parameter.grad.layout, parameter.grad.dtype
                if of[0] is not torch.strided or of[1] is torch.float16:
                    raise Uncapturable(f"a scaled gradient is of {of[1]}, {of[0]}")
                one = ~parameter.grad.isfinite().all()
                overflown = one if overflown is None else overflown | one
                parameter.grad = parameter.grad * inverse.to(parameter.grad.dtype)
        if overflown is None:
            raise Uncapturable("there are no gradients to scale down")
        self._overflown[id(optimizer)] = overflown

    def step(self, optimizer: Any) -> None:
        """Take the optimizer's step, unless a gradient has overflown."""
        if id(optimizer) in self._stepped:
            raise Uncapturable("a scaled step is taken a second time")
        if id(optimizer) not in self._overflown:
            self.unscale_(optimizer)
        self._takes[id(optimizer)](self._overflown[id(optimizer)])
        self._stepped.add(id(optimizer))

    @torch.no_grad()
    def update(self) -> None:
        """Go on with the scale: less after an overflow, more after many steps without one."""
        if not self._overflown:
            raise Uncapturable("a scale is to be updated, but no gradients were looked at")
        # a single one that has overflown makes the scale less
        overflown = functools.reduce(torch.logical_or, self._overflown.values())
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
        self._overflown.clear()
        self._stepped.clear()

    def check_updated(self) -> None:
        """Refuse what a step would leave to the next one."""
        if self._overflown:
            raise Uncapturable("the ops look at scaled gradients without updating the scale")

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
