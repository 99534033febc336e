"""Backward passes of losses through autograd's engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import has_torch_function

from fastnet.backend.torch._internals import (
    is_defined_by_torch,
    run_backward,
    transforms_are_active,
)
from fastnet.backend.torch.disable_autocast import without_autocast
from fastnet.backend.torch.parameters import (
    gradients_set_aside,
    graph_leaves,
    model_and_optimizer_parameters,
    parameters_of_others,
)


def unpatched(function: Any) -> Any:
    """Return a function of torch, or an object that equals nothing if the user has replaced it."""
    return function if is_defined_by_torch(function) else object()


_tensor_backward = unpatched(Tensor.backward)
_backward = unpatched(torch.autograd.backward)


def engine_suffices(target: Tensor, *sources: Tensor) -> bool:
    """Return whether a call of autograd's engine equals torch's own functions around it.

    It does not under a mode of torch functions or a transform of `torch.func`, nor for complex
    numbers.
    """
    return (
        run_backward is not None
        and not has_torch_function((target, *sources))
        and target.is_floating_point()
        and not transforms_are_active()
    )


def call_engine(
    target: Tensor,
    inputs: tuple[Tensor, ...],
    retain_graph: bool,
    create_graph: bool,
    accumulate: bool,
) -> Any:
    """Differentiate the sum of a tensor's elements; `engine_suffices` must be true."""
    return run_backward(  # type: ignore[misc]
        (target,),
        (torch.ones_like(target),),
        retain_graph,
        create_graph,
        inputs,
        allow_unreachable=True,
        accumulate_grad=accumulate,
    )


def _is_direct(loss: Tensor) -> bool:
    """Return whether autograd's engine alone does what the loss's own `backward` does."""
    return (
        engine_suffices(loss)
        and getattr(loss.backward, "__func__", None) is _tensor_backward
        and torch.autograd.backward is _backward
    )


def _has_default_backward(loss: Tensor) -> bool:
    """Return whether a loss's `backward` is torch's default, also under a mode, as in a trace."""
    kind = type(loss)
    # Parameter and fake tensors disable `__torch_function__`, so they use `Tensor.backward`.
    overrides = kind is not Tensor and kind.__torch_function__ is not Parameter.__torch_function__
    return (
        not overrides
        and not transforms_are_active()
        and getattr(loss.backward, "__func__", None) is _tensor_backward
        and torch.autograd.backward is _backward
    )


@without_autocast
def backward(loss: Tensor, parameters: Sequence[Tensor] | None, retain_graph: bool) -> None:
    """Accumulate the gradients of a scalar loss in the given leaves; None for all leaves."""
    if parameters is not None and not parameters:
        return  # An empty list would mean all of them.
    if _is_direct(loss):
        call_engine(loss, tuple(parameters or ()), retain_graph, False, accumulate=True)
        return
    loss.backward(retain_graph=retain_graph, inputs=parameters)  # type: ignore[no-untyped-call]


def isolated_backward(
    loss: Tensor, retain_graph: bool, model: Module, optimizer: Any, other_models: Iterable[Module]
) -> None:
    """Accumulate a loss's gradients in all leaves except the parameters of other models.

    A parameter of the model or of its optimizer is not excepted, even if another model shares it.
    """
    leaves, may_have_more = graph_leaves(loss)
    trained_ids = set(map(id, model_and_optimizer_parameters(model, optimizer)))
    foreign = parameters_of_others(other_models, trained_ids)
    foreign_ids = set(map(id, foreign))
    if not leaves and not may_have_more:
        backward(loss, None, retain_graph)  # Raises, as there is nothing to differentiate.
        return
    # Autograd functions written in Python and custom `backward` methods need the whole graph.
    needs_whole_graph = may_have_more or not _has_default_backward(loss)
    inputs = None if needs_whole_graph else [leaf for leaf in leaves if id(leaf) not in foreign_ids]
    # A hook on another leaf may write to the gradients of foreign parameters.
    with gradients_set_aside(foreign):
        backward(loss, inputs, retain_graph)
