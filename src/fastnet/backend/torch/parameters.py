"""Lists of parameters, and of the leaves that a loss depends on, and their gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Module, Parameter

from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch._internals import version_of


def trainable_parameters(model: Module) -> list[Parameter]:
    """List the trainable parameters of a model, in order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def optimizer_parameters(optimizer: Any) -> list[Parameter]:
    """List the parameters that an optimizer updates; None has none."""
    groups = getattr(optimizer, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def named_trainable_parameters(value: Any) -> Iterator[tuple[str, Parameter]]:
    """Yield the trainable parameters of a module or an optimizer, or a parameter, with names."""
    if isinstance(value, Parameter):
        named: Iterable[tuple[str, Parameter]] = [("", value)]
    elif isinstance(value, Module):
        named = value.named_parameters()
    elif "param_groups" in getattr(value, "__dict__", {}):
        named = [("", parameter) for parameter in optimizer_parameters(value)]
    else:
        named = ()
    yield from ((name, parameter) for name, parameter in named if parameter.requires_grad)


def model_and_optimizer_parameters(model: Module, optimizer: Any) -> list[Parameter]:
    """List the parameters of a model, then others that its optimizer updates, each once."""
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    parameters.update((id(parameter), parameter) for parameter in optimizer_parameters(optimizer))
    return list(parameters.values())


def parameters_of_others(
    others: Iterable[Module], excluded_ids: Collection[int]
) -> list[Parameter]:
    """List the parameters of other models and their optimizers, except those with given ids."""
    return [
        parameter
        for other in others
        for parameter in model_and_optimizer_parameters(
            other, get_metadata(other, "current_optimizer")
        )
        if id(parameter) not in excluded_ids
    ]


def in_order_of_model(parameters: Iterable[Parameter], model: Module) -> list[Parameter]:
    """Return parameters as `model.parameters()` lists them, with those of no model at the end."""
    positions = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    return sorted(parameters, key=lambda one: positions.get(id(one), len(positions)))


@contextmanager
def gradients_set_aside(parameters: Iterable[Tensor]) -> Iterator[None]:
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


def accumulate_gradients(
    parameters: Iterable[Parameter], gradients: Iterable[Tensor | None]
) -> None:
    """Add gradients to those in `.grad`; they are neither changed nor kept."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient.detach().clone()
        else:
            parameter.grad += gradient.detach()


def graph_leaves(loss: Tensor) -> tuple[list[Tensor], bool]:
    """Return the leaves of the graph of a loss, and whether it may depend on more leaves.

    A function written in Python may differentiate graphs of its own, as a checkpoint does.
    """
    start: Any = loss.grad_fn
    if start is None:
        return ([loss] if loss.requires_grad else []), False
    leaves: list[Tensor] = []
    seen, waiting, kinds = {start}, [start], set[type]()
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind.__name__ == "AccumulateGrad":
            leaves.append(node.variable)
            continue
        kinds.add(kind)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves, any(issubclass(kind, BackwardCFunction) for kind in kinds)


def is_about_parameter(error: str, models: Iterable[Module]) -> bool:
    """Return whether autograd's error for an overwritten tensor is about a model's parameter."""
    found = re.search(r"\[\S+ \[([\d, ]*)\]\].* is at version (\d+)", error)
    if found is None:
        return False
    # A layer may save a view of its weight, which has the same version.
    key = math.prod(map(int, re.findall(r"\d+", found[1]))), int(found[2])
    parameters = (one for model in models for one in model.parameters())
    return any((one.numel(), version_of(one)) == key for one in parameters)
