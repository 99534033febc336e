"""Running, differentiating and updating models of any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fastnet.backend.dispatch import implementation
from fastnet.backend.framework import framework_of
from fastnet.types import Model, Tensor

__all__ = ["feed_forward", "get_gradient", "update_model"]


def feed_forward(model: Model, *x: Tensor, training: bool = True) -> Any:
    """Run a model.

    Args:
        model: The model.
        x: Its inputs; numpy arrays become tensors.
        training: Whether layers such as dropout act as in training.

    Returns:
        What the model returns.

    Raises:
        ValueError: If the model is of no known framework.
    """
    return _speaking(model, "models").feed_forward(model, *x, training=training)


def get_gradient(
    target: Tensor,
    sources: Sequence[Tensor] | Tensor,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    """Differentiate.

    Args:
        target: What to differentiate; of any shape, whose elements count alike.
        sources: What to differentiate by: a tensor, or several.
        higher_order: Whether the gradients can be differentiated in turn.
        tape: What recorded the target (TensorFlow only).
        retain_graph: Whether the graph can be walked again (torch only).

    Returns:
        A gradient of the shape of its source, or several, with None for a source that has no part
        in the target.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> get_gradient(x**2, x)
    tensor([2., 4.])
    """
    gradients = import_module(f"{implementation(target).__name__}.gradients")
    return gradients.get_gradient(target, sources, higher_order, tape, retain_graph)


def update_model(
    model: Model,
    gradients: Sequence[Tensor | None],
    defer: bool = False,
    deferred: dict[str, list[Callable[[], None]]] | None = None,
) -> None:
    """Update a model's weights.

    Args:
        model: A model from `fastnet.build`.
        gradients: A gradient for each of its trainable parameters, in order; None for none.
        defer: Whether to put the optimizer's step off.
        deferred: Where to put it: lists of functions by the model's name.

    Raises:
        AssertionError: If the model has no `current_optimizer`.
        ValueError: If the model is of no known framework or has no optimizer now, or there is
            nowhere to defer to.
    """
    _speaking(model, "gradients").update_model(model, gradients, defer, deferred)


def _speaking(model: Model, part: str) -> Any:
    framework = framework_of(model)
    if framework is None:
        raise ValueError(
            f"Unrecognized model instance {type(model).__name__}: expected a torch.nn.Module."
        )
    return import_module(f"fastnet.backend.{framework}.{part}")
