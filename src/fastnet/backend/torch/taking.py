"""How ops take gradients in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.gradients import get_gradient
from fastnet.errors import GRADIENT_ADVICE, add_note

__all__ = ["take"]


def take(
    target: torch.Tensor, sources: Any, higher_order: bool, tape: Any, retain_graph: bool
) -> Any:
    """Differentiate, as `get_gradient` does; where nothing was recorded say what to do."""
    try:
        return get_gradient(target, sources, higher_order, tape, retain_graph)
    except RuntimeError as error:
        given = sources if isinstance(sources, (list, tuple)) else (sources,)
        if not all(getattr(one, "requires_grad", True) for one in (target, *given)):
            add_note(error, GRADIENT_ADVICE)
        raise
