"""Gradients by the weights of models that are spread over processes: averages, as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch.averaging import average
from fastnet.backend.torch.engines import engine_of, groups_of
from fastnet.backend.torch.graph import reached
from fastnet.backend.torch.sharded import gather_no_more
from fastnet.backend.torch.taking import take
from fastnet.backend.torch.update import (
    TRAINED,
    backward,
    cleared_gradients,
    parameters_of,
    trainable,
)
from fastnet.types import State

__all__ = ["taker_of"]

_Taker = Callable[[torch.Tensor, State, bool], list[Any]]


def taker_of(model: torch.nn.Module) -> _Taker | None:
    """Return what takes the gradients of a model whose engine communicates.

    Args:
        model: The model.

    Returns:
        What takes a value, the step's context, and whether its graph can be walked again, and
        returns a gradient for each trained parameter: in training the average over the processes,
        sharded as the parameter is. None for a model of one process.
    """
    engine = engine_of(model)
    if engine == "ddp":
        return _Averaging(model)
    return _ByBackward(model) if engine == "fsdp" else None


class _Averaging:
    """Takes gradients of a model in DistributedDataParallel.

    Its hooks hear of no gradient that is not added to a parameter's.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._groups = groups_of(model)

    def __call__(self, final: torch.Tensor, state: State, retain_graph: bool) -> list[Any]:
        """Take gradients."""
        parameters = trainable(self._model)
        gradients = take(final, parameters, False, None, retain_graph)
        if state["mode"] != "train":
            return list(gradients)
        return average(gradients, parameters, self._groups)


class _ByBackward:
    """Takes gradients of a model that FSDP2 has sharded.

    The graph ends at whole parameters, which the engine alone knows, and which it communicates the
    gradients of in a backward pass.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        gather_no_more(model)
        self._own = list(model.parameters())

    def __call__(self, final: torch.Tensor, state: State, retain_graph: bool) -> list[Any]:
        """Take gradients, and leave those that parameters hold as they are."""
        leaves, _ = reached(final)
        models = [*state.get(TRAINED, ()), self._model]
        held = [
            one
            for model in models
            for one in parameters_of(model, get_metadata(model, "current_optimizer"))
        ]
        parameters = [one for one in self._own if one.requires_grad]
        with cleared_gradients([*leaves, *held]):
            backward(final.sum(), None, retain_graph)
            return [parameter.grad for parameter in parameters]
