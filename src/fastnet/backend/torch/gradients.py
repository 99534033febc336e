"""Gradients of torch tensors, and the updates they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import has_torch_function

from fastnet.backend.facts import name_of
from fastnet.backend.scheduled import nowhere_to_defer, optimizer_of
from fastnet.backend.torch._internals import (
    is_bare_zero_grad,
    is_torchs,
    run_backward,
    transforms_are_active,
)
from fastnet.backend.torch.averaging import averaged
from fastnet.backend.torch.engines import engine_of, groups_of
from fastnet.errors import add_note

__all__ = [
    "DeferredStep",
    "apply_gradients",
    "backward",
    "drop_gradients",
    "get_gradient",
    "is_direct",
    "owned",
    "parameters_of",
    "step_optimizer",
    "trainable",
    "update_model",
    "watch",
]


def _own(function: Any) -> Any:
    """Return a function of torch; None if somebody has put another one in its place."""
    return function if is_torchs(function) else None


_tensor_backward = _own(torch.Tensor.backward)
_backward = _own(torch.autograd.backward)
_grad = _own(torch.autograd.grad)


def is_direct(loss: torch.Tensor) -> bool:
    """Return whether autograd's engine alone does what the loss's own `backward` would do.

    Args:
        loss: The loss.

    Returns:
        Whether nobody looks on (a mode of torch functions, a transform of `torch.func`) or has put
        something in the place of `backward`, and the loss is no complex number.
    """
    return (
        run_backward is not None
        and not has_torch_function((loss,))
        and loss.is_floating_point()
        and getattr(loss.backward, "__func__", None) is _tensor_backward
        and torch.autograd.backward is _backward
        and not transforms_are_active()
    )


def backward(
    loss: torch.Tensor, parameters: Sequence[torch.Tensor] | None, retain_graph: bool
) -> None:
    """Add a loss's gradients to those that leaves of its graph hold.

    Args:
        loss: The loss, a scalar.
        parameters: The leaves; no other one is touched. None for all.
        retain_graph: Whether the graph can be walked again.

    Raises:
        RuntimeError: If the loss has no graph, or its graph is gone or overwritten.
    """
    if parameters is not None and not parameters:
        return  # an empty list would mean all of them
    if is_direct(loss):
        run_backward(  # type: ignore[misc]
            (loss,),
            (torch.ones_like(loss),),
            retain_graph,
            False,
            () if parameters is None else tuple(parameters),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        return
    # what stands in the place of `backward` may take no arguments
    settings: dict[str, Any] = {"retain_graph": True} if retain_graph else {}
    if parameters is not None:
        settings["inputs"] = list(parameters)
    loss.backward(**settings)  # type: ignore[no-untyped-call]


def get_gradient(
    target: torch.Tensor,
    sources: Iterable[torch.Tensor] | torch.Tensor,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    """Differentiate.

    Args:
        target: What to differentiate; of any shape, whose elements count alike.
        sources: What to differentiate by: a tensor, or several.
        higher_order: Whether the gradients can be differentiated in turn.
        tape: Not used; other frameworks need it.
        retain_graph: Whether the graph can be walked again.

    Returns:
        A gradient of the shape of its source, or a tuple of them, with None for a source that has
        no part in the target.
    """
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
    """Update a model's weights.

    Args:
        model: A model from `fastnet.build`. Of one that is spread over processes the gradients are
            averaged, so that each of them has to call this.
        gradients: A gradient for each of its trainable parameters, in order; None for none.
        defer: Whether to put the optimizer's step off.
        deferred: Where to put it: lists of functions by the model's name.

    Raises:
        AssertionError: If the model has no `current_optimizer`.
        ValueError: If the model's current optimizer is None, or there is nowhere to defer to.
    """
    optimizer = optimizer_of(model)
    if defer and deferred is None:
        raise nowhere_to_defer(model)
    parameters = trainable(model)
    if engine_of(model) in ("ddp", "fsdp"):
        gradients = averaged(gradients, parameters, groups_of(model))
    apply_gradients(parameters, gradients)
    if defer and deferred is not None:
        deferred[name_of(model)] = [DeferredStep(optimizer, name_of(model))]
    else:
        step_optimizer(optimizer, name_of(model))
        if deferred:
            # the gradients that an earlier update put off have just been used
            deferred.pop(name_of(model), None)


def apply_gradients(
    parameters: Iterable[torch.nn.Parameter], gradients: Iterable[torch.Tensor | None]
) -> None:
    """Add gradients to those that parameters hold.

    Args:
        parameters: The parameters.
        gradients: A gradient for each; None for none. They are not changed, and not held on to.
    """
    for parameter, gradient in zip(parameters, gradients, strict=False):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient.detach().clone()
        else:
            parameter.grad += gradient


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """List the parameters of a model that are trained, in order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def owned(optimizer: Any) -> list[torch.nn.Parameter]:
    """List what an optimizer updates, in order.

    Args:
        optimizer: The optimizer, or None for none.
    """
    groups = getattr(optimizer, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def parameters_of(model: torch.nn.Module, optimizer: Any) -> list[torch.nn.Parameter]:
    """List what a model has, and then what its optimizer updates besides.

    Args:
        model: The model.
        optimizer: Its optimizer, or None for none.

    Returns:
        Each parameter once, frozen ones too.
    """
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    parameters.update((id(parameter), parameter) for parameter in owned(optimizer))
    return list(parameters.values())


def step_optimizer(optimizer: Any, name: str) -> None:
    """Take an optimizer's step, through its scaler if it has one, and drop the gradients.

    Args:
        optimizer: The optimizer, with a `scaler` that may be None.
        name: The name of the model that it updates.
    """
    scaler = getattr(optimizer, "scaler", None)
    try:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    except Exception as error:
        add_note(error, f"Raised by the update of model '{name}'.")
        raise
    finally:
        drop_gradients(optimizer)


def drop_gradients(optimizer: Any) -> None:
    """Let go of the gradients of all that an optimizer updates.

    Args:
        optimizer: The optimizer.
    """
    zero_grad = optimizer.zero_grad
    if not is_bare_zero_grad(zero_grad):
        zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


class DeferredStep:
    """An optimizer's step that waits for the last op.

    Args:
        optimizer: The optimizer.
        name: The name of the model that it updates.
        take: What takes it.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        take: Callable[[Any, str], None] = step_optimizer,
    ) -> None:
        self._optimizer = optimizer
        self._name = name
        self._take = take

    def __call__(self) -> None:
        """Take the step."""
        self._take(self._optimizer, self._name)

    def discard(self) -> None:
        """Drop the gradients, because the network's step failed."""
        drop_gradients(self._optimizer)


def watch(tensor: torch.Tensor, tape: Any = None) -> torch.Tensor:
    """Let gradients be taken by a tensor.

    Args:
        tensor: The tensor, floating point.
        tape: Not used; other frameworks need it.

    Returns:
        The tensor, if it has gradients already; else one of the same values, outside of any graph.
    """
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_(True)
