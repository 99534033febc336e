"""Cross entropies of classes along any axis, with labels left out or smoothed, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from fastnet.backend.torch.losses import row_of, weights_of_indices

__all__ = ["categorical_crossentropy_along_axis", "sparse_categorical_crossentropy_along_axis"]

# what torch passes over in every loss of its own
_PASSED_OVER = -100


def sparse_categorical_crossentropy_along_axis(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    axis: int,
    from_logits: bool,
    average_loss: bool,
    class_weights: Mapping[int, float] | None,
    ignore_index: int | None,
    label_smoothing: float,
) -> torch.Tensor:
    """Compare class predictions with class indices.

    Args:
        y_pred: Predictions, a probability (or logit) for each class.
        y_true: Class indices, of the predictions' shape without the axis of the classes, or with
            a length of 1 there.
        axis: The axis of the classes, counted from the front.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements that are not left out.
        class_weights: Weights of classes by index; a class without one weighs 1.
        ignore_index: The index of elements that are left out, None for none.
        label_smoothing: How much of the truth is spread over all classes.

    Returns:
        A scalar, or a loss for each element, 0 for those that are left out.
    """
    if y_true.dim() == y_pred.dim():
        y_true = y_true.squeeze(axis)
    y_true = y_true.long()
    # torch's gradients of images are of none that are stored in another order
    y_pred = y_pred.movedim(axis, 1).contiguous()
    left_out = _PASSED_OVER if ignore_index is None else ignore_index
    if from_logits:
        loss = functional.cross_entropy(
            y_pred,
            y_true,
            ignore_index=left_out,
            reduction="none",
            label_smoothing=label_smoothing,
        )
    else:
        logs = y_pred.log()
        loss = functional.nll_loss(logs, y_true, ignore_index=left_out, reduction="none")
        if label_smoothing:
            spread = -logs.mean(1).masked_fill(y_true == left_out, 0)
            loss = (1 - label_smoothing) * loss + label_smoothing * spread
    if class_weights:
        loss = loss * weights_of_indices(y_true, class_weights, y_pred)
    if not average_loss:
        return loss
    if ignore_index is None:
        return loss.mean()
    # halves would not hold a sum of many
    total = loss.sum(dtype=torch.promote_types(loss.dtype, torch.float32))
    return (total / (y_true != left_out).sum()).to(loss.dtype)


def categorical_crossentropy_along_axis(
    y_pred: torch.Tensor,
    y_true: torch.Tensor,
    axis: int,
    from_logits: bool,
    average_loss: bool,
    class_weights: Mapping[int, float] | None,
    label_smoothing: float,
) -> torch.Tensor:
    """Compare class predictions with one-hot truth.

    Args:
        y_pred: Predictions, a probability (or logit) for each class.
        y_true: Truth, of the same shape.
        axis: The axis of the classes, counted from the front.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1.
        label_smoothing: How much of the truth is spread over all classes.

    Returns:
        A scalar, or a loss for each element.
    """
    y_pred, y_true = y_pred.movedim(axis, 1), y_true.movedim(axis, 1).to(y_pred.dtype)
    if from_logits:
        loss = functional.cross_entropy(
            y_pred, y_true, reduction="none", label_smoothing=label_smoothing
        )
    else:
        spread = label_smoothing / y_pred.shape[1]
        loss = -((y_true * (1 - label_smoothing) + spread) * y_pred.log()).sum(1)
    if class_weights:
        loss = loss * row_of(class_weights, y_true)[y_true.argmax(1)]
    return loss.mean() if average_loss else loss


categorical = categorical_crossentropy_along_axis
sparse = sparse_categorical_crossentropy_along_axis
