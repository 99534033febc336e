"""The graph behind a loss."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

__all__ = ["reached"]


def reached(loss: torch.Tensor) -> tuple[list[torch.Tensor], bool]:
    """Find what a backward pass ends at.

    Args:
        loss: Where it begins. Its graph may have been walked already.

    Returns:
        The leaves, and whether functions written in Python are on the way: these may go on to
        leaves of graphs of their own, which cannot be seen from here (a checkpoint that enters
        autograd anew does), and may do more than pass gradients on.
    """
    start: Any = loss.grad_fn
    accumulate = _accumulate()
    if start is None:
        return ([loss] if loss.requires_grad else []), False
    leaves: list[torch.Tensor] = []
    seen, waiting, kinds = {start}, [start], set[type]()
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is accumulate:
            leaves.append(node.variable)
            continue
        kinds.add(kind)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves, any(issubclass(kind, BackwardCFunction) for kind in kinds)


@lru_cache(maxsize=1)
def _accumulate() -> type:
    """Find the class of the node at the end of each path, which adds to the `.grad` of a leaf."""
    with torch.inference_mode(False):
        leaf = torch.empty(0, device="cpu", requires_grad=True)
        return type(get_gradient_edge(leaf).node)
