"""Gradients of torch tensors, in and apart from the `.grad` of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from fastnet.backend.model_metadata import get_metadata, name_of, optimizer_of
from fastnet.backend.torch.all_reduce import average_gradients
from fastnet.backend.torch.backward import call_engine, engine_suffices, unpatched
from fastnet.backend.torch.disable_autocast import without_autocast
from fastnet.backend.torch.optimizer_step import PendingStep
from fastnet.backend.torch.parameters import (
    accumulate_gradients,
    graph_leaves,
    optimizer_parameters,
    trainable_parameters,
)
from fastnet.backend.torch.update import TRAINED, unscale_gradients
from fastnet.backend.torch.wrappers import groups_of, parallel_type
from fastnet.errors import GRADIENT_ADVICE, add_note, require_one_gradient_each
from fastnet.types import State

_grad = unpatched(torch.autograd.grad)


@without_autocast
def get_gradient(
    target: Tensor,
    sources: Iterable[Tensor] | Tensor,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    single = isinstance(sources, Tensor)
    inputs = (sources,) if isinstance(sources, Tensor) else tuple(sources)
    try:
        if inputs and engine_suffices(target, *inputs) and torch.autograd.grad is _grad:
            gradients = call_engine(target, inputs, retain_graph, higher_order, accumulate=False)
        else:
            ones = torch.ones_like(target)
            gradients = torch.autograd.grad(
                target, inputs, ones, retain_graph, higher_order, allow_unused=True
            )
    except RuntimeError as error:
        if not all(tensor.requires_grad for tensor in (target, *inputs)):
            add_note(error, GRADIENT_ADVICE)
        raise
    return gradients[0] if single else gradients


compute_gradients = get_gradient


def compute_differentiable(target: Tensor, sources: Sequence[Tensor] | Tensor, state: State) -> Any:
    """Compute gradients with a graph, by a scaled target in mixed precision, and unscale them."""
    scaler = _scaler_of(target, state)
    if scaler is None:
        return get_gradient(target, sources, True)
    # In half precision unscaled gradients would underflow on their way to the sources.
    gradients = get_gradient(scaler.scale(target), sources, True)
    if isinstance(sources, Tensor):
        return unscale_gradients([gradients], scaler)[0]
    return unscale_gradients(gradients, scaler)


def _scaler_of(target: Tensor, state: State) -> Any:
    """Return the scaler of a trained model that a tensor depends on, or None."""
    optimizers = [get_metadata(model, "current_optimizer") for model in state.get(TRAINED, ())]
    scaled = [
        optimizer for optimizer in optimizers if getattr(optimizer, "scaler", None) is not None
    ]
    leaf_ids = {id(leaf) for leaf in graph_leaves(target)[0]} if scaled else set()
    for optimizer in scaled:
        if any(id(parameter) in leaf_ids for parameter in optimizer_parameters(optimizer)):
            return optimizer.scaler
    return None


def watch(tensor: Tensor, tape: Any = None) -> Tensor:
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_(True)


def update_model(
    model: Module,
    gradients: Sequence[Tensor | None],
    defer: bool,
    deferred: dict[str, list[Any]],
) -> None:
    # In distributed training all processes call this, and gradients are averaged over them.
    optimizer = optimizer_of(model)
    groups = groups_of(model) if parallel_type(model) in ("ddp", "fsdp") else []
    parameters = trainable_parameters(model)
    require_one_gradient_each(gradients, len(parameters), name_of(model))
    if groups:
        gradients = average_gradients(gradients, parameters, groups)
    scaler = getattr(optimizer, "scaler", None)
    if scaler is not None:
        # The optimizer's step unscales them.
        gradients = [None if gradient is None else scaler.scale(gradient) for gradient in gradients]
    accumulate_gradients(parameters, gradients)
    PendingStep(optimizer, model, name_of(model)).take_or_defer(defer, deferred)
