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
    other_models: Iterable[Module], excluded_ids: Collection[int]
) -> list[Parameter]:
    """List the parameters of other models and their optimizers, except those with given ids."""
    return [
        parameter
        for model in other_models
        for parameter in model_and_optimizer_parameters(
            model, get_metadata(model, "current_optimizer")
        )
        if id(parameter) not in excluded_ids
    ]


def in_order_of_model(parameters: Iterable[Parameter], model: Module) -> list[Parameter]:
    """Sort parameters as `model.parameters()` lists them, those that are not in it last."""
    positions = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    last = len(positions)
    return sorted(parameters, key=lambda parameter: positions.get(id(parameter), last))


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
    """Add gradients to those in `.grad`, without changing or keeping the given tensors."""
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
    match = re.search(r"\[\S+ \[([\d, ]*)\]\].* is at version (\d+)", error)
    if match is None:
        return False
    # The shape may differ: a layer may save a view of its weight, which has the same version.
    size = math.prod(map(int, re.findall(r"\d+", match[1])))
    version = int(match[2])
    parameters = (parameter for model in models for parameter in model.parameters())
    return any(
        parameter.numel() == size and version_of(parameter) == version for parameter in parameters
    )
