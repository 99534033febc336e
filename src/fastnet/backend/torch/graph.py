"""Walks the graph of a loss."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

__all__ = ["reached"]


def reached(loss: torch.Tensor) -> tuple[list[torch.Tensor], bool]:
    """Return the leaves that a loss depends on, and whether there may be others.

    A function written in Python may differentiate graphs of its own, as a checkpoint does.
    """
    start: Any = loss.grad_fn
    if start is None:
        return ([loss] if loss.requires_grad else []), False
    accumulate = _accumulate()
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
    """Return the class of the node that accumulates the gradient of a leaf."""
    with torch.inference_mode(False):
        leaf = torch.empty(0, device="cpu", requires_grad=True)
        return type(get_gradient_edge(leaf).node)
