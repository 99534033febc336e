"""A step of a torch optimizer with gradients clipped before it, and what is told of it."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.clipping import clip_by_norm, clip_by_value, total_norm
from fastnet.backend.torch.gradients import drop_gradients, owned
from fastnet.errors import add_note
from fastnet.op.tensorop.model.model_update import Extras

__all__ = ["ExtraStep", "take_with"]


class ExtraStep:
    """What takes an optimizer's step, once or not at all, and tells of it.

    What it tells are tensors that are filled in when the step is taken, which may be after the op
    has returned them.

    Args:
        extras: What is to be done besides.
        model: The model that is updated.
    """

    def __init__(self, extras: Extras, model: torch.nn.Module) -> None:
        self._extras = extras
        self._told: dict[str, torch.Tensor] = {}
        if extras.reports:
            first = next(model.parameters(), None)
            device = None if first is None else first.device
            self._told = {
                "grad_norm": torch.full((), float("nan"), device=device),
                "stepped": torch.zeros((), dtype=torch.bool, device=device),
            }

    def __call__(self, optimizer: Any, name: str) -> None:
        """Take the step.

        Args:
            optimizer: The optimizer, with a `scaler` that may be None.
            name: The name of the model that it updates.
        """
        norm, stepped = take_with(self._extras, optimizer, name)
        if self._told:
            if norm is not None:
                self._told["grad_norm"].copy_(norm)
            self._told["stepped"].fill_(stepped)

    def reports(self) -> list[torch.Tensor] | None:
        """Return what is asked for, in order; None where nothing is."""
        reports = self._extras.reports
        return [self._told[one] for one in reports] if reports else None


def take_with(extras: Extras, optimizer: Any, name: str) -> tuple[torch.Tensor | None, bool]:
    """Clip gradients, take an optimizer's step, and drop the gradients.

    Args:
        extras: What is to be done besides the step.
        optimizer: The optimizer, with a `scaler` that may be None.
        name: The name of the model that it updates.

    Returns:
        The norm before gradients were clipped, None where nobody asks for it, and whether the step
        was taken: the scaler passes over one whose gradients have overflown.
    """
    scaler = getattr(optimizer, "scaler", None)
    norm = None
    try:
        if scaler is not None:
            scaler.unscale_(optimizer)
        if extras.clip_norm is not None:
            norm = clip_by_norm(owned(optimizer), extras.clip_norm)
        elif "grad_norm" in extras.reports:
            norm = total_norm(owned(optimizer))
        if extras.clip_value is not None:
            clip_by_value(owned(optimizer), extras.clip_value)
        if scaler is None:
            optimizer.step()
            stepped = True
        else:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            # one that has come to 0 makes all gradients overflow, and can get no smaller
            stepped = (before > 0) & (before <= scaler.get_scale())
    except Exception as error:
        add_note(error, f"Raised by the update of model '{name}'.")
        raise
    finally:
        drop_gradients(optimizer)
    if extras.followers and stepped:
        for follow in extras.followers:
            follow()
    return norm, stepped
