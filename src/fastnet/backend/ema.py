"""The decay of moving averages, a number or a function of the number of updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastnet.backend.model_metadata import name_of
from fastnet.errors import shorten
from fastnet.types import Model

Decay = float | Callable[[Any], Any]
"""A rate from 0 to 1, or a function that returns it."""


def decay_after(decay: Callable[[Any], Any], updates: Any, model: Model) -> float:
    """Return the decay after some updates; raise a ValueError if it is not from 0 to 1."""
    rate = decay(updates)
    if isinstance(rate, bool) or not hasattr(rate, "__float__") or not 0 <= float(rate) <= 1:
        raise ValueError(
            f"EMA of '{name_of(model)}' has a decay that is {shorten(rate)} after {int(updates)} "
            "updates, but it must be a number from 0 to 1."
        )
    return float(rate)
