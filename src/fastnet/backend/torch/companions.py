"""Models that are trained beside each other, none of which may get another's gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fastnet.backend.facts import fact, put_fact
from fastnet.backend.torch.gradients import backward, is_direct, owned, parameters_of
from fastnet.backend.torch.graph import reached

__all__ = ["TRAINED", "Aside", "backward_apart"]

TRAINED = "trained_models"
"""Where a step's context has the models that are trained beside each other, if there are any."""


class Aside:
    """Gradients of a model that an update has put out of its way.

    They are kept on the model, where each update of it finds them, whatever op that is in. A copy
    of the model begins with none.
    """

    def __init__(self) -> None:
        self._gradients: dict[torch.Tensor, torch.Tensor | None] = {}

    def __reduce__(self) -> tuple[type[Aside], tuple[()]]:
        return Aside, ()

    @staticmethod
    def of(model: torch.nn.Module) -> Aside:
        """Look up, or begin, what of a model is out of the way."""
        found = getattr(model, "fe_aside", None)
        if not isinstance(found, Aside):
            found = fact(model, "fe_aside")
        if not isinstance(found, Aside):
            found = Aside()
            put_fact(model, "fe_aside", found)
        return found

    def put_aside(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take the gradients of the model off its parameters.

        Args:
            parameters: The parameters.
        """
        aside = self._gradients
        for parameter in parameters:
            # what is out of the way already stays as it is
            aside.setdefault(parameter, parameter.grad)
            parameter.grad = None

    def give_back(self) -> None:
        """Put them on the parameters again, for what has come there meanwhile."""
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
        self._gradients = {}

    def forget(self) -> None:
        """Drop them."""
        self._gradients = {}


def backward_apart(
    loss: torch.Tensor,
    retain_graph: bool,
    model: torch.nn.Module,
    optimizer: Any,
    others: Iterable[torch.nn.Module],
) -> None:
    """Add a loss's gradients to those of all leaves but those that others train.

    What is trained by the model too is its own. Where the graph does not reach the others this is
    the plain backward pass.

    Args:
        loss: The loss, a scalar.
        retain_graph: Whether the graph can be walked again.
        model: The model that is updated.
        optimizer: Its optimizer.
        others: The models that are trained beside it.

    Raises:
        RuntimeError: If the loss has no graph, or its graph is gone or overwritten.
    """
    leaves, hidden = reached(loss)
    own = set(map(id, owned(optimizer)))
    if not hidden and all(id(leaf) in own for leaf in leaves):
        backward(loss, None, retain_graph)
        return
    own.update(map(id, model.parameters()))
    held = [
        (
            Aside.of(other),
            [
                parameter
                for parameter in parameters_of(other, fact(other, "current_optimizer"))
                if id(parameter) not in own
            ],
        )
        for other in others
    ]
    theirs = {id(parameter) for _, parameters in held for parameter in parameters}
    # what a function of Python does, or a backward of the user's own, needs the whole of the graph
    whole = hidden or not is_direct(loss)
    inputs = None if whole else [leaf for leaf in leaves if id(leaf) not in theirs]
    try:
        # also for leaves that stand for theirs, and pass their gradients on
        for aside, parameters in held:
            aside.put_aside(parameters)
        backward(loss, inputs, retain_graph)
    finally:
        for aside, _ in held:
            aside.give_back()
