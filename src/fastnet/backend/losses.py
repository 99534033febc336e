"""Losses on the tensors of any framework."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from fastnet.backend.dispatch import dispatched_to, implementation
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


@dispatched_to("losses", by="y_pred")
def binary_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compare yes-or-no predictions with the truth.

    Args:
        y_pred: Predictions, shape (batch, ...), floating point.
        y_true: Truth, of as many elements, 0 or 1 (or between).
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over the batch.
        class_weights: Weights of the classes 0 and 1; a class without one weighs 1. In TensorFlow
            a lookup table as well.

    Returns:
        A scalar, or a loss for each sample, shape (batch,).

    >>> import torch
    >>> binary_crossentropy(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    tensor(0.6931)
    """


@dispatched_to("losses", by="y_pred")
def categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compare class predictions with one-hot truth.

    Args:
        y_pred: Predictions, a probability (or logit) for each class.
        y_true: Truth, of the same shape.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1. In TensorFlow a
            lookup table as well.

    Returns:
        A scalar, or a loss for each sample.

    >>> import torch
    >>> categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """


@dispatched_to("losses", by="y_pred")
def sparse_categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> Tensor:
    """Compare class predictions with class indices.

    Args:
        y_pred: Predictions, a probability (or logit) for each class.
        y_true: Class indices, of the predictions' shape without its class axis.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1. In TensorFlow a
            lookup table as well.

    Returns:
        A scalar, or a loss for each sample.

    >>> import torch
    >>> sparse_categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931)
    """


@dispatched_to("losses", by="y_pred")
def mean_squared_error(y_true: Tensor, y_pred: Tensor, average_loss: bool = False) -> Tensor:
    """Average squared differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        average_loss: Whether to average over all axes.

    Returns:
        Means, of the shape without its last axis, or a scalar.

    >>> import torch
    >>> mean_squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
    tensor([2.])
    """


@dispatched_to("losses", by="y_pred")
def hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Average over the last axis how far predictions are from the right side of the margin.

    Args:
        y_true: Truth, -1 or 1, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis.

    Raises:
        ValueError: If the predictions are of no framework that fastnet knows.

    >>> import torch
    >>> hinge(torch.tensor([[1, -1]]), torch.tensor([[0.5, -2.0]]))
    tensor([0.2500])
    """


def huber(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Average differences over the last axis: small ones squared, large ones as they are.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small, and what large ones are multiplied by.

    Returns:
        Means, of the shape without its last axis. In TensorFlow, losses of one axis stay as they
        are.

    Raises:
        ValueError: If `beta` is not above 0, or the predictions are of no framework that fastnet
            knows.

    >>> import torch
    >>> huber(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([3.2500])
    """
    _check_beta("huber", beta)
    return implementation(y_pred).losses.huber(y_true, y_pred, beta)


@dispatched_to("losses", by="y_pred")
def l1_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Average absolute differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis. In TensorFlow, losses of one axis stay as they
        are.

    Raises:
        ValueError: If the predictions are of no framework that fastnet knows.

    >>> import torch
    >>> l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, -4.0]]))
    tensor([2.5000])
    """


def smooth_l1_loss(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Average differences over the last axis: small ones squared and divided by `beta`.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small.

    Returns:
        Means, of the shape without its last axis.

    Raises:
        ValueError: If `beta` is not above 0, or the predictions are of no framework that fastnet
            knows.

    >>> import torch
    >>> smooth_l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([1.6250])
    """
    _check_beta("smooth_l1_loss", beta)
    return implementation(y_pred).losses.smooth_l1_loss(y_true, y_pred, beta)


def _check_beta(loss: str, beta: float) -> None:
    if beta <= 0:
        raise ValueError(f"The beta of {loss} is a number above 0, but got {shorten(beta)}.")
