"""Keeps the gradients of jointly trained models separate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastnet.backend.facts import fact
from fastnet.backend.torch.gradients import backward, is_direct, owned, parameters_of
from fastnet.backend.torch.graph import reached

__all__ = ["TRAINED", "cleared_gradients", "isolated_backward", "parameters_of_others"]

TRAINED = "trained_models"
"""The key of the step's context that lists the jointly trained models, if there are several."""


@contextmanager
def cleared_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Clear the gradients of parameters, and restore them on exit."""
    # Models may share a parameter. Its gradient is saved once, before it is cleared.
    saved = {parameter: parameter.grad for parameter in parameters}
    try:
        for parameter in saved:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in saved.items():
            parameter.grad = gradient


def parameters_of_others(
    others: Iterable[torch.nn.Module], own: Collection[int]
) -> list[torch.nn.Parameter]:
    """List the parameters of other models and their optimizers, except those whose id is own."""
    return [
        parameter
        for other in others
        for parameter in parameters_of(other, fact(other, "current_optimizer"))
        if id(parameter) not in own
    ]


def isolated_backward(
    loss: torch.Tensor,
    retain_graph: bool,
    model: torch.nn.Module,
    optimizer: Any,
    others: Iterable[torch.nn.Module],
) -> None:
    """Accumulate a loss's gradients in all leaves except the parameters of other models.

    A parameter of the model or of its optimizer is never another model's, whoever shares it.
    """
    leaves, hidden = reached(loss)
    own = set(map(id, owned(optimizer)))
    if not hidden and all(id(leaf) in own for leaf in leaves):
        backward(loss, None, retain_graph)
        return
    own.update(map(id, model.parameters()))
    foreign = parameters_of_others(others, own)
    foreign_ids = set(map(id, foreign))
    # Autograd functions written in Python and custom `backward` methods need the whole graph.
    needs_whole_graph = hidden or not is_direct(loss)
    inputs = None if needs_whole_graph else [leaf for leaf in leaves if id(leaf) not in foreign_ids]
    # A leaf that is left may pass its gradient on to a foreign parameter.
    with cleared_gradients(foreign):
        backward(loss, inputs, retain_graph)
