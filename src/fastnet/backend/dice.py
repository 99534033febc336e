"""The Dice score."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from fastnet.backend.dispatch import backend_of
from fastnet.types import Tensor

__all__ = ["dice_score"]


def dice_score(
    y_pred: Tensor,
    y_true: Tensor,
    soft_dice: bool = False,
    sample_average: bool = False,
    channel_average: bool = False,
    channel_weights: Tensor | Sequence[float] | None = None,
    mask_overlap: bool = True,
    threshold: float | None = None,
    empty_nan: bool = False,
    epsilon: float = 1e-6,
) -> Tensor:
    """Return the Dice score of predicted masks, ``2 * |A & B| / (|A| + |B| + epsilon)``.

    Args:
        y_pred: Predictions from 0 to 1, shape (batch, channels, ...) in torch and (batch, ...,
            channels) elsewhere.
        y_true: Labels, 0 or 1, of the same shape.
        soft_dice: Whether to square the terms of the denominator.
        sample_average: Whether to average over the batch.
        channel_average: Whether to average over the channels.
        channel_weights: The weight of each channel, of a shape that broadcasts to (batch,
            channels).
        mask_overlap: Whether masks may overlap. If not, only the largest prediction at each
            position counts.
        threshold: The threshold above which a prediction becomes 1, and else 0. None for none.
        empty_nan: Whether the score is NaN rather than 0 where both masks are empty.
        epsilon: Added to the denominator.

    Returns:
        Scores from 0 to 1, shape (batch, channels) without the averaged axes. Half precision is
        summed in float32.

    >>> import numpy as np
    >>> dice_score(np.array([[[1.0], [0.5]]]), np.array([[[1.0], [0.0]]])).round(3)
    array([[0.8]])
    """
    return compute_dice_score(
        backend_of(y_pred),
        y_pred,
        y_true,
        soft_dice,
        sample_average,
        channel_average,
        channel_weights,
        mask_overlap,
        threshold,
        empty_nan,
        epsilon,
    )


def compute_dice_score(
    functions: Any,
    y_pred: Tensor,
    y_true: Tensor,
    soft_dice: bool,
    sample_average: bool,
    channel_average: bool,
    channel_weights: Tensor | Sequence[float] | None,
    mask_overlap: bool,
    threshold: float | None,
    empty_nan: bool,
    epsilon: float,
) -> Tensor:
    """Return the Dice score by the functions of a backend package (see `dice_score`)."""
    dtype_source = y_pred
    is_half, axes, spatial, total = _plan(functions, y_pred.dtype, len(functions.shape_of(y_pred)))
    if is_half:
        y_pred = functions.cast(y_pred, "float32")
    y_true = functions.cast_like(y_true, y_pred)
    if not mask_overlap:
        largest = functions.reduce_max(y_pred, [functions.CHANNEL_AXIS], True)
        y_pred = functions.where(y_pred >= largest, y_pred, 0.0)
    if threshold is not None:
        y_pred = functions.cast_like(y_pred > threshold, y_pred)
    add, multiply = functions.add, functions.multiply
    common = total(multiply(y_pred, y_true), spatial)
    if soft_dice:
        both = add(total(y_pred**2, spatial), total(y_true**2, spatial))
    else:
        both = add(total(y_pred, spatial), total(y_true, spatial))
    dice = functions.divide(multiply(common, 2.0), add(both, epsilon))
    if channel_weights is not None:
        dice = multiply(dice, functions.cast_like(channel_weights, y_pred))
    if empty_nan:
        found = sum(functions.reduce_max(each, axes, False) for each in (y_true, y_pred))
        dice = functions.where(found < 0.0001, math.nan, dice)
    if channel_average:
        dice = functions.mean_of(dice, -1)
    if sample_average:
        dice = functions.mean_of(dice, 0)
    return functions.cast_like(dice, dtype_source) if is_half else dice


@lru_cache(maxsize=32)
def _plan(
    functions: Any, dtype: Any, rank: int
) -> tuple[bool, tuple[int, ...], Any, Callable[..., Tensor]]:
    """Return whether masks are in half precision, their spatial axes, and how to sum over these."""
    channels = functions.CHANNEL_AXIS % rank
    axes = tuple(axis for axis in range(1, rank) if axis != channels)
    is_half = "float16" in str(dtype)  # or bfloat16
    if not axes:
        return is_half, axes, axes, partial(functions.reduce_sum, keepdims=False)
    spatial = axes[0] if len(axes) == 1 else functions.prepare_axes(axes)
    return is_half, axes, spatial, functions.sum_of
