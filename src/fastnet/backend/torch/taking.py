"""How ops take gradients in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.gradients import get_gradient
from fastnet.errors import GRADIENT_ADVICE, add_note
from fastnet.types import Forward, State

__all__ = ["pair_taker", "take"]


def take(
    target: torch.Tensor, sources: Any, higher_order: bool, tape: Any, retain_graph: bool
) -> Any:
    """Differentiate, as `get_gradient` does; where nothing was recorded say what to do."""
    try:
        return get_gradient(target, sources, higher_order, tape, retain_graph)
    except RuntimeError as error:
        if "require grad" in str(error):
            add_note(error, GRADIENT_ADVICE)
        raise


def pair_taker(retain_graph: bool) -> Forward:
    """Give what differentiates the second of two values by the first, and returns a list."""

    def take_one(data: Any, state: State) -> list[Any]:
        return [take(data[1], data[0], False, None, retain_graph)]

    return take_one
