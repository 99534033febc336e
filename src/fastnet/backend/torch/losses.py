"""Losses on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "mean_squared_error",
    "sparse_categorical_crossentropy",
]

# no class has this index, so no target is passed over in silence
_NO_CLASS = torch.iinfo(torch.int64).min


def binary_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """Compare yes-or-no predictions with the truth.

    Args:
        y_pred: Predictions, shape (batch, ...), floating point.
        y_true: Truth, of as many elements, 0 or 1 (or between).
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over the batch.
        class_weights: Weights of the classes 0 and 1; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch,).
    """
    y_true = y_true.to(y_pred.dtype)
    compare: Callable[..., torch.Tensor] = (
        functional.binary_cross_entropy_with_logits
        if from_logits
        else functional.binary_cross_entropy
    )
    loss = compare(y_pred, y_true.view(y_pred.size()), reduction="none")
    if class_weights:
        loss = loss * _weights_of(y_true, class_weights, y_true.dtype).reshape(loss.shape)
    loss = loss.view(loss.shape[0], -1).mean(dim=1)
    return loss.mean() if average_loss else loss


def categorical_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """Compare class predictions with one-hot truth.

    Args:
        y_pred: Predictions, shape (batch, classes, ...), floating point.
        y_true: Truth, of the same shape, a probability for each class.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch, ...).
    """
    y_true = y_true.to(torch.float)
    log_probabilities = functional.log_softmax(y_pred, dim=1) if from_logits else y_pred.log()
    loss = torch.sum(-y_true * log_probabilities, 1)
    if class_weights:
        classes = y_true.argmax(dim=1)
        loss = loss * _weights_of(classes, class_weights, torch.float).reshape(loss.shape)
    return loss.mean() if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """Compare class predictions with class indices.

    Args:
        y_pred: Predictions, shape (batch, classes, ...), floating point.
        y_true: Class indices, shape (batch, ...) or (batch, 1), any integer type. Elements of
            index -100 have loss 0, and count in the mean.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch, ...).
    """
    if y_true.dtype is not torch.int64:
        y_true = y_true.long()
    if y_true.dim() == y_pred.dim() and y_true.dim() == 2 and y_true.shape[1] == 1:
        y_true = y_true.squeeze(1)
    compare = functional.cross_entropy if from_logits else functional.nll_loss
    if not from_logits:
        y_pred = y_pred.log()
    if average_loss and not class_weights and y_pred.device.type == "cpu":
        # One kernel for loss and mean, where a mean over all elements is the mean over the batch.
        # The CPU's kernel says so when it meets an index that is none, such as -100.
        try:
            return compare(y_pred, y_true, ignore_index=_NO_CLASS)
        except IndexError:
            pass
    loss = compare(y_pred, y_true, reduction="none")
    if class_weights:
        loss = loss * _weights_of(y_true, class_weights, torch.float).reshape(loss.shape)
    return loss.mean() if average_loss else loss


def mean_squared_error(
    y_true: torch.Tensor, y_pred: torch.Tensor, average_loss: bool = False
) -> torch.Tensor:
    """Average squared differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        average_loss: Whether to average over all axes.

    Returns:
        Means, of the shape without its last axis, or a scalar.
    """
    if average_loss:
        return functional.mse_loss(y_pred, y_true)
    return functional.mse_loss(y_pred, y_true, reduction="none").mean(dim=-1)


def _weights_of(
    classes: torch.Tensor, class_weights: Mapping[int, float], dtype: torch.dtype
) -> torch.Tensor:
    weights = torch.ones_like(classes, dtype=dtype)
    for index, weight in class_weights.items():
        weights[classes == index] = weight
    return weights
