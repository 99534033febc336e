"""Loss functions."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten
from fastnet.types import Tensor

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "hinge",
    "huber",
    "l1_loss",
    "mean_squared_error",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
]

WeightOfEach: TypeAlias = "Mapping[int, float] | tf.lookup.StaticHashTable"


def binary_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compute the binary cross-entropy loss.

    Args:
        y_pred: Predictions, floating point, shape (batch, ...).
        y_true: Labels from 0 to 1, with as many elements.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over the batch.
        class_weights: The weights of classes by index, by default 1. In TensorFlow also a
            `tf.lookup.StaticHashTable`.

    Returns:
        A scalar, or one loss per sample, shape (batch,).

    >>> import torch
    >>> binary_crossentropy(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    tensor(0.6931)
    """
    return backend_of(y_pred).binary_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compute the cross-entropy loss for one-hot labels.

    Args:
        y_pred: Predictions, shape (batch, classes, ...) in torch, and (..., classes) elsewhere.
        y_true: One-hot labels, or probabilities of the classes, of the same shape.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses.
        class_weights: The weights of classes by index; see `binary_crossentropy`.

    Returns:
        A scalar, or the losses, of the shape of `y_pred` without the class axis.

    >>> import torch
    >>> categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """
    return backend_of(y_pred).categorical_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def sparse_categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compute the cross-entropy loss for class indices.

    Args:
        y_pred: Predictions, shape (batch, classes, ...) in torch, and (..., classes) elsewhere.
        y_true: Class indices, of the shape of `y_pred` without the class axis. A floating point
            dtype is accepted if every label is a whole number.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses.
        class_weights: The weights of classes by index; see `binary_crossentropy`.

    Returns:
        A scalar, or the losses, of the shape of `y_true`.

    Raises:
        ValueError: If a label has a fraction. On a GPU, in a compiled step and in a TensorFlow
            graph, it is handled as an index out of range instead, which is never truncated.

    >>> import torch
    >>> sparse_categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931)
    """
    return backend_of(y_pred).sparse_categorical_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def mean_squared_error(y_true: Tensor, y_pred: Tensor, average_loss: bool = False) -> Tensor:
    """Return the mean squared error along the last axis.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        average_loss: Whether to return the mean of all losses, a scalar.

    >>> import torch
    >>> mean_squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
    tensor([2.])
    """
    return backend_of(y_pred).mean_squared_error(y_true, y_pred, average_loss)


def hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Return the hinge loss, ``mean(max(1 - y_true * y_pred, 0))``, along the last axis.

    Args:
        y_true: Labels, -1 or 1, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    >>> import torch
    >>> hinge(torch.tensor([[1, -1]]), torch.tensor([[0.5, -2.0]]))
    tensor([0.2500])
    """
    return backend_of(y_pred).hinge(y_true, y_pred)


def huber(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Compute the Huber loss along the last axis.

    An error ``e`` contributes ``0.5 * e**2`` up to `beta`, ``beta * (|e| - 0.5 * beta)`` above.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: The error at which the loss becomes linear.

    Returns:
        The mean losses, of the shape without the last axis. In TensorFlow, losses with one axis are
        not averaged.

    Raises:
        ValueError: If `beta` is not positive.

    >>> import torch
    >>> huber(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([3.2500])
    """
    _check_beta("huber", beta)
    return backend_of(y_pred).huber(y_true, y_pred, beta)


def l1_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Compute the mean absolute error along the last axis.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    Returns:
        The losses, of the shape without the last axis. In TensorFlow, losses with one axis are not
        averaged.

    >>> import torch
    >>> l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, -4.0]]))
    tensor([2.5000])
    """
    return backend_of(y_pred).l1_loss(y_true, y_pred)


def smooth_l1_loss(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Return the smooth L1 loss, averaged along the last axis.

    An error ``e`` contributes ``0.5 * e**2 / beta`` below `beta`, ``|e| - 0.5 * beta`` above.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: The error at which the loss becomes linear.

    Raises:
        ValueError: If `beta` is not positive.

    >>> import torch
    >>> smooth_l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([1.6250])
    """
    _check_beta("smooth_l1_loss", beta)
    return backend_of(y_pred).smooth_l1_loss(y_true, y_pred, beta)


def _check_beta(loss: str, beta: float) -> None:
    if beta <= 0:
        raise ValueError(f"The beta of {loss} is a number above 0, but got {shorten(beta)}.")
