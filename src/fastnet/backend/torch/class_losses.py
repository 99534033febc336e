"""Cross-entropy along any axis, with `ignore_index` and label smoothing, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from fastnet.backend.torch.losses import (
    class_indices,
    refuse_fractions,
    row_of,
    weights_of_indices,
)

__all__ = ["categorical_crossentropy_along_axis", "sparse_categorical_crossentropy_along_axis"]

# The default of `ignore_index` in torch's own losses.
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
    """Cross-entropy with class indices along an axis; 0 for elements that are ignored."""
    if y_true.dim() == y_pred.dim():
        y_true = y_true.squeeze(axis)
    labels, y_true = y_true, class_indices(y_true)
    # The backward pass of `nll_loss` refuses input that is not contiguous.
    y_pred = y_pred.movedim(axis, 1).contiguous()
    left_out = _PASSED_OVER if ignore_index is None else ignore_index
    try:
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
    except IndexError as error:
        refuse_fractions(labels, error)
        raise
    if class_weights:
        loss = loss * weights_of_indices(y_true, class_weights, y_pred)
    if not average_loss:
        return loss
    if ignore_index is None:
        return loss.mean()
    # The sum of many elements overflows in half precision.
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
    """Cross-entropy with one-hot labels along an axis."""
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
