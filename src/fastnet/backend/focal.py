"""The focal loss, for the tensors of any framework."""

from __future__ import annotations

from numbers import Real
from typing import Any

from fastnet.backend.dispatch import implementation
from fastnet.errors import shorten
from fastnet.types import Tensor

__all__ = ["focal_loss"]

REDUCTIONS = ("sum", "mean", "none", None)


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
    """Compare yes-or-no predictions with the truth, those that are nearly right counting less.

    Args:
        y_true: Truth, shape (batch, ...), 0 or 1.
        y_pred: Predictions, of the same shape.
        gamma: How much less, 0 or more.
        alpha: What a truth of 1 weighs, from 0 to 1; a truth of 0 weighs the rest.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        normalize: Whether to divide each sample's losses by how many of its truths are 1.
        shape_reduction: What to do with the losses of each sample: "sum", "mean" or "none".
        sample_reduction: What to do with those of all samples: "mean", "sum" or "none".
        label_smoothing: How far to move the truth towards 0.5, out of 1.

    Returns:
        A scalar, or losses of the shape (batch,) or (batch, ...).

    Raises:
        ValueError: If a setting is none of these, or the truth is of no framework that fastnet
            knows.

    Source: "Focal Loss for Dense Object Detection" (Lin, Goyal, Girshick, He and Dollar, 2017).

    >>> import torch
    >>> focal_loss(torch.tensor([[1.0]]), torch.tensor([[0.5]]))
    tensor(0.0433)
    """
    _check(gamma, alpha, shape_reduction, sample_reduction)
    return compute(
        implementation(y_true),
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
    """Do what `focal_loss` does, with settings that are checked and a framework that is known.

    Args:
        functions: The package of `fastnet.backend` that speaks it.
        y_true: Truth.
        y_pred: Predictions.
        gamma: How much less what is nearly right counts.
        alpha: What a truth of 1 weighs.
        from_logits: Whether `y_pred` are logits.
        normalize: Whether to divide each sample's losses by how many of its truths are 1.
        shape_reduction: What to do with the losses of each sample.
        sample_reduction: What to do with those of all samples.
        label_smoothing: How far to move the truth towards 0.5.

    Returns:
        The loss.
    """
    y_true = functions.cast_like(y_true, y_pred)
    smooth = y_true
    if label_smoothing:
        smooth = y_true * (1.0 - label_smoothing) + 0.5 * label_smoothing
    loss = functions.losses.focal(smooth, y_pred, gamma, alpha, from_logits)
    axes = tuple(range(1, len(functions.shape_of(loss))))
    add = functions.sum_of if axes else functions.reduce_sum
    places = axes[0] if len(axes) == 1 else axes
    if normalize:
        # the truth has as many axes as the loss
        count = functions.clip_by_value(add(y_true, places, keepdims=True), 1, None)
        loss = functions.divide(loss, count)
    if shape_reduction == "sum":
        loss = add(loss, places, keepdims=False)
    elif shape_reduction == "mean":
        loss = functions.reduce_mean(loss, axes, False)
    if sample_reduction == "mean":
        loss = functions.mean_of(loss)
    elif sample_reduction == "sum":
        loss = functions.sum_of(loss)
    return loss


def _check(
    gamma: Any, alpha: Any, shape_reduction: str | None, sample_reduction: str | None
) -> None:
    if not isinstance(gamma, Real) or gamma < 0:
        raise ValueError(
            f"The focal loss's gamma is a number of 0 or more, but got {shorten(gamma)}."
        )
    if not isinstance(alpha, Real) or not 0 <= float(alpha) <= 1:
        raise ValueError(
            f"The focal loss's alpha is a number from 0 to 1, but got {shorten(alpha)}."
        )
    for name, value in (
        ("shape_reduction", shape_reduction),
        ("sample_reduction", sample_reduction),
    ):
        if value not in REDUCTIONS:
            raise ValueError(
                f"The focal loss's {name} is 'sum', 'mean' or 'none', but got {shorten(value)}."
            )
