"""Focal loss."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten
from fastnet.types import Tensor

__all__ = ["focal_loss"]


def focal_loss(
    y_true: Tensor,
    y_pred: Tensor,
    gamma: float = 2.0,
    alpha: float = 0.25,
    from_logits: bool = False,
    normalize: bool = True,
    shape_reduction: str | None = "sum",
    sample_reduction: str | None = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the focal loss: binary cross-entropy that down-weights well-classified examples.

    From "Focal Loss for Dense Object Detection" (Lin, Goyal, Girshick, He and Dollar, 2017).

    Args:
        y_true: Labels, 0 or 1, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        gamma: The focusing parameter, at least 0.
        alpha: The weight of positive examples, from 0 to 1; negative ones weigh ``1 - alpha``.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        normalize: Whether to divide the losses of each sample by its number of positive examples.
        shape_reduction: The reduction over each sample: "sum", "mean" or "none".
        sample_reduction: The reduction over the batch: "mean", "sum" or "none".
        label_smoothing: The amount of label smoothing, from 0 to 1, which moves labels towards 0.5.

    Returns:
        A scalar, or losses of shape (batch,) or (batch, ...).

    Raises:
        ValueError: If a parameter is out of range, or there is no such reduction.

    >>> import torch
    >>> focal_loss(torch.tensor([[1.0]]), torch.tensor([[0.5]]))
    tensor(0.0433)
    """
    numbers: list[tuple[str, Any, float]] = [("gamma", gamma, math.inf), ("alpha", alpha, 1)]
    for name, number, most in numbers:
        if not isinstance(number, Real) or not 0 <= float(number) <= most:
            raise ValueError(
                f"The focal loss's {name} is a number from 0 to {most}, but got {shorten(number)}."
            )
    reductions = {"shape_reduction": shape_reduction, "sample_reduction": sample_reduction}
    for name, value in reductions.items():
        if value not in ("sum", "mean", "none", None):
            raise ValueError(
                f"The focal loss's {name} is 'sum', 'mean' or 'none', but got {shorten(value)}."
            )
    return compute(
        backend_of(y_true),
        y_true,
        y_pred,
        gamma,
        alpha,
        from_logits,
        normalize,
        shape_reduction,
        sample_reduction,
        label_smoothing,
    )


def compute(
    functions: Any,
    y_true: Tensor,
    y_pred: Tensor,
    gamma: float,
    alpha: float,
    from_logits: bool,
    normalize: bool,
    shape_reduction: str | None,
    sample_reduction: str | None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the focal loss with the functions of a framework's package."""
    y_true = functions.cast_like(y_true, y_pred)
    smooth = y_true
    if label_smoothing:
        smooth = y_true * (1.0 - label_smoothing) + 0.5 * label_smoothing
    loss = functions.focal(smooth, y_pred, gamma, alpha, from_logits)
    axes = tuple(range(1, len(functions.shape_of(loss))))
    total = functions.sum_of if axes else functions.reduce_sum
    inner = axes[0] if len(axes) == 1 else axes
    if normalize:
        count = functions.clip_by_value(total(y_true, inner, keepdims=True), 1, None)
        loss = functions.divide(loss, count)
    if shape_reduction == "sum":
        loss = total(loss, inner, keepdims=False)
    elif shape_reduction == "mean":
        loss = functions.reduce_mean(loss, axes, False)
    if sample_reduction == "mean":
        loss = functions.mean_of(loss)
    elif sample_reduction == "sum":
        loss = functions.sum_of(loss)
    return loss
