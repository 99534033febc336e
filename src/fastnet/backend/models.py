"""Running, differentiating and updating models of any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastnet.backend.dispatch import implementation
from fastnet.backend.framework import framework_of
from fastnet.frameworks import part_in, part_of
from fastnet.types import Model, Tensor

__all__ = [
    "feed_forward",
    "get_gradient",
    "l2_regularization",
    "module_for",
    "update_model",
    "watch",
]


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
    return module_for(model, "models").feed_forward(model, *x, training=training)


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

    Raises:
        ValueError: If the target is no tensor of torch or TensorFlow.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> get_gradient(x**2, x)
    tensor([2., 4.])
    """
    return _gradients_of(target).get_gradient(target, sources, higher_order, tape, retain_graph)


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
    module_for(model, "gradients").update_model(model, gradients, defer, deferred)


def watch(tensor: Tensor, tape: Any = None) -> Tensor:
    """Make gradients by a tensor possible.

    Args:
        tensor: A tensor, floating point.
        tape: What is to record (TensorFlow only).

    Returns:
        The tensor to go on with: in torch another one, unless gradients can be taken by it anyway.

    Raises:
        ValueError: If it is no tensor of torch or TensorFlow, or TensorFlow has no tape.

    >>> import torch
    >>> watch(torch.ones(2))
    tensor([1., 1.], requires_grad=True)
    """
    return _gradients_of(tensor).watch(tensor, tape)


def l2_regularization(model: Model, beta: float = 0.01) -> Tensor:
    """Add up the squares of a model's trainable weights.

    Args:
        model: The model.
        beta: What half of the sum is multiplied by.

    Returns:
        A scalar.

    Raises:
        ValueError: If the model is of no known framework.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 3.0)
    >>> l2_regularization(model, beta=0.5)
    tensor(4.5000, grad_fn=<MulBackward0>)
    """
    return module_for(model, "models").l2_regularization(model, beta)


def module_for(model: Model, part: str) -> Any:
    """Find what a framework has to do with models.

    Args:
        model: A model.
        part: The name of a module in the framework's package.

    Returns:
        The module of the model's framework.

    Raises:
        ValueError: If the model is of no known framework.
    """
    framework = framework_of(model)
    if framework is None:
        raise ValueError(
            f"Unrecognized model instance {type(model).__name__}: expected a torch.nn.Module or a "
            "Keras model."
        )
    return part_of(framework, part)


def _gradients_of(tensor: Tensor) -> Any:
    package = implementation(tensor).__name__
    return part_in(package, "gradients", "framework", "fastnet.backend")
