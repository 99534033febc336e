"""Losses on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "focal",
    "hinge",
    "huber",
    "l1_loss",
    "mean_squared_error",
    "smooth_l1_loss",
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


def hinge(y_true: torch.Tensor, y_pred: torch.Tensor) -> torch.Tensor:
    """Average over the last axis how far predictions are from the right side of the margin.

    Args:
        y_true: Truth, -1 or 1.
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis.
    """
    return (1.0 - y_true.to(y_pred.dtype) * y_pred).clamp(min=0).mean(dim=-1)


def l1_loss(y_true: torch.Tensor, y_pred: torch.Tensor) -> torch.Tensor:
    """Average absolute differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis.
    """
    return functional.l1_loss(y_pred, y_true, reduction="none").mean(dim=-1)


def smooth_l1_loss(y_true: torch.Tensor, y_pred: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    """Average differences over the last axis, small ones squared and divided by `beta`.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small.

    Returns:
        Means, of the shape without its last axis.
    """
    return functional.smooth_l1_loss(y_pred, y_true, reduction="none", beta=beta).mean(dim=-1)


def huber(y_true: torch.Tensor, y_pred: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    """Average differences over the last axis, small ones squared, large ones times `beta`.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small.

    Returns:
        Means, of the shape without its last axis.
    """
    # torch takes no other type of truth, and only says so when gradients are taken
    y_true = y_true.to(y_pred.dtype)
    return functional.huber_loss(y_pred, y_true, reduction="none", delta=beta).mean(dim=-1)


def focal(
    y_true: torch.Tensor, y_pred: torch.Tensor, gamma: float, alpha: float, from_logits: bool
) -> torch.Tensor:
    """Compare yes-or-no predictions with the truth, those that are nearly right counting less.

    Args:
        y_true: Truth, 0 or 1 (or between), of the predictions' type.
        y_pred: Predictions, of the same shape.
        gamma: How much less.
        alpha: What a truth of 1 weighs, out of 1.
        from_logits: Whether `y_pred` are logits rather than probabilities.

    Returns:
        A loss for each element.
    """
    if from_logits:
        probability = y_pred.sigmoid()
        entropy = functional.binary_cross_entropy_with_logits(y_pred, y_true, reduction="none")
    else:
        probability = y_pred
        entropy = functional.binary_cross_entropy(y_pred, y_true, reduction="none")
    right = probability * y_true + (1 - probability) * (1 - y_true)
    weight = alpha * y_true + (1 - alpha) * (1 - y_true)
    return weight * (entropy * (1 - right) ** gamma)


def _weights_of(
    classes: torch.Tensor, class_weights: Mapping[int, float], dtype: torch.dtype
) -> torch.Tensor:
    weights = torch.ones_like(classes, dtype=dtype)
    for index, weight in class_weights.items():
        weights[classes == index] = weight
    return weights
