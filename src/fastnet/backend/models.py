"""Running, differentiating and updating models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from fastnet.backend.dispatch import backend_of, model_framework
from fastnet.backend.model_metadata import name_of, optimizer_of
from fastnet.errors import shorten
from fastnet.types import Model, Tensor

if TYPE_CHECKING:
    import torch

__all__ = [
    "feed_forward",
    "get_gradient",
    "get_lr",
    "get_optimizer",
    "l2_regularization",
    "set_lr",
    "update_model",
    "watch",
]


def feed_forward(model: Model, *x: Tensor, training: bool = True) -> Any:
    """Return the output of a model.

    Args:
        model: A `torch.nn.Module` or Keras model.
        x: Its inputs; numpy arrays are converted to tensors.
        training: Whether to run in training mode, which matters to layers such as dropout.

    Raises:
        ValueError: If `model` is no model of torch or Keras.
    """
    return model_framework(model).feed_forward(model, *x, training=training)


def get_gradient(
    target: Tensor,
    sources: Sequence[Tensor] | Tensor,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    """Compute the gradient of a tensor with respect to others.

    Args:
        target: The tensor to differentiate. If it is no scalar, the sum of its elements is
            differentiated.
        sources: One tensor, or several.
        higher_order: Whether the gradients can be differentiated in turn.
        tape: The `tf.GradientTape` that recorded `target` (TensorFlow only).
        retain_graph: Whether to keep the graph for another backward pass (torch only).

    Returns:
        A gradient of the shape of its source, or one for each source, with None for a source that
        `target` does not depend on.

    Raises:
        ValueError: If `target` is no tensor of torch or TensorFlow, or there is no tape in
            TensorFlow.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> get_gradient(x**2, x)
    tensor([2., 4.])
    """
    return backend_of(target).get_gradient(target, sources, higher_order, tape, retain_graph)


def update_model(
    model: Model,
    gradients: Sequence[Tensor | None],
    defer: bool = False,
    deferred: dict[str, list[Callable[[], None]]] | None = None,
) -> None:
    """Update the weights of a model by a step of its optimizer.

    Args:
        model: A model from `fastnet.build`.
        gradients: The gradient of each trainable parameter, in order, or None for no gradient. In
            mixed precision those of the unscaled loss: they are scaled as the optimizer expects.
        defer: Whether to append the step to `deferred` instead.
        deferred: Lists of deferred functions by model name, as in ``state["deferred"]``. In torch
            a step that an UpdateOp of the model has deferred is the same step, with the sum of
            both gradients.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If `model` is no model of torch or Keras or has no optimizer now, if there are
            not as many gradients as trainable parameters, or `defer` is true without `deferred`.
    """
    framework = model_framework(model)
    if defer and deferred is None:
        raise ValueError(
            f"An update of model '{name_of(model)}' is to be deferred, but no dict to defer it "
            "into was given. Pass `deferred`, or defer=False."
        )
    framework.update_model(model, gradients, defer, {} if deferred is None else deferred)


def watch(tensor: Tensor, tape: Any = None) -> Tensor:
    """Track gradients with respect to a tensor.

    Args:
        tensor: A floating point tensor.
        tape: The `tf.GradientTape` to record with (TensorFlow only).

    Returns:
        The tensor to continue with: in torch a new one, unless `tensor` requires gradients already.

    Raises:
        ValueError: If `tensor` is no tensor of torch or TensorFlow, or there is no tape in
            TensorFlow.

    >>> import torch
    >>> watch(torch.ones(2))
    tensor([1., 1.], requires_grad=True)
    """
    return backend_of(tensor).watch(tensor, tape)


def l2_regularization(model: Model, beta: float = 0.01) -> Tensor:
    """Return the L2 norm penalty ``beta / 2 * sum(w**2)`` of a model's trainable weights, a scalar.

    Args:
        model: A `torch.nn.Module` or Keras model.
        beta: The factor of the penalty.

    Raises:
        ValueError: If `model` is no model of torch or Keras.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 3.0)
    >>> l2_regularization(model, beta=0.5)
    tensor(4.5000, grad_fn=<MulBackward0>)
    """
    return model_framework(model).l2_regularization(model, beta)


def get_lr(model: Model) -> float:
    """Return the learning rate of a model's current optimizer, in its first parameter group.

    Args:
        model: A model from `fastnet.build`. A schedule of Keras gives its current value.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If `model` is no model of torch or Keras, or has no optimizer now.

    >>> import torch, fastnet
    >>> get_lr(fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd"))
    0.01
    """
    return model_framework(model).get_lr(model)


@overload
def get_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer: ...


@overload
def get_optimizer(model: Model) -> Any: ...


def get_optimizer(model: Model) -> Any:
    """Return a model's current optimizer: `model.current_optimizer`, with a type.

    Args:
        model: A model from `fastnet.build`.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If the model has no optimizer now.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam")
    >>> get_optimizer(model) is model.current_optimizer
    True
    """
    return optimizer_of(model)


def set_lr(model: Model, lr: float, weight_decay: float | None = None) -> None:
    """Set the learning rate of a model's current optimizer.

    Args:
        model: A model from `fastnet.build`.
        lr: The learning rate of all parameter groups.
        weight_decay: The weight decay, for an optimizer that has one. None leaves it unchanged in
            torch, and scales it with the learning rate in TensorFlow.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        TypeError: If the learning rate is no number.
        ValueError: If the learning rate is negative, infinite or NaN, or if `model` is no model of
            torch or Keras, has no optimizer now, or one whose learning rate follows a schedule, or
            one without weight decay where it is given.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd")
    >>> set_lr(model, 0.5)
    >>> get_lr(model)
    0.5
    """
    if not hasattr(lr, "__float__"):
        raise TypeError(
            f"set_lr takes a number, such as 1e-3, but got {shorten(lr)}. Give a schedule to the "
            "optimizer, in the optimizer_fn of fastnet.build, or call set_lr in each epoch."
        )
    if not 0 <= float(lr) < math.inf:
        raise ValueError(f"set_lr takes a finite learning rate of at least 0, but got {lr}.")
    model_framework(model).set_lr(model, lr, weight_decay)
