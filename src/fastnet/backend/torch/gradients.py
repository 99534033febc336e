"""Gradients of torch tensors, and the updates that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import has_torch_function

from fastnet.backend.model_metadata import name_of, nowhere_to_defer, optimizer_of
from fastnet.backend.torch._internals import is_torchs, run_backward, transforms_are_active
from fastnet.backend.torch.all_reduce import average
from fastnet.backend.torch.update import OptimizerStep, accumulate_gradients, trainable
from fastnet.backend.torch.wrappers import engine_of, groups_of

__all__ = ["get_gradient", "trainable", "update_model", "watch"]

_grad: Any = torch.autograd.grad if is_torchs(torch.autograd.grad) else None


def get_gradient(
    target: torch.Tensor,
    sources: Iterable[torch.Tensor] | torch.Tensor,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    """Differentiate a tensor, as `fastnet.backend.get_gradient` documents."""
    single = isinstance(sources, torch.Tensor)
    by = (sources,) if isinstance(sources, torch.Tensor) else tuple(sources)
    if (
        run_backward is None
        or not by
        or has_torch_function((target, *by))
        or not target.is_floating_point()
        or torch.autograd.grad is not _grad
        or transforms_are_active()
    ):
        gradients = torch.autograd.grad(
            target,
            by,
            grad_outputs=torch.ones_like(target),
            retain_graph=retain_graph,
            create_graph=higher_order,
            allow_unused=True,
        )
    else:
        gradients = run_backward(
            (target,),
            (torch.ones_like(target),),
            retain_graph,
            higher_order,
            by,
            allow_unreachable=True,
            accumulate_grad=False,
        )
    return gradients[0] if single else gradients


def update_model(
    model: torch.nn.Module,
    gradients: Sequence[torch.Tensor | None],
    defer: bool = False,
    deferred: dict[str, list[Callable[[], None]]] | None = None,
) -> None:
    """Update a model's weights, as `fastnet.backend.update_model` documents.

    In distributed training all processes call this, and gradients are averaged over them.
    """
    optimizer = optimizer_of(model)
    if defer and deferred is None:
        raise nowhere_to_defer(model)
    groups = groups_of(model) if engine_of(model) in ("ddp", "fsdp") else []
    parameters = trainable(model)
    if groups:
        gradients = average(gradients, parameters, groups)
    accumulate_gradients(parameters, gradients)
    step = OptimizerStep(optimizer, name_of(model))
    if defer and deferred is not None:
        deferred[name_of(model)] = [step]
        return
    step()
    if deferred:
        # This step has used the gradients that an earlier update deferred.
        deferred.pop(name_of(model), None)


def watch(tensor: torch.Tensor, tape: Any = None) -> torch.Tensor:
    """Track gradients with respect to a tensor: return it, or a copy outside of any graph."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_(True)
