"""How well predicted masks overlap true ones, for the tensors of any framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastnet.backend.dispatch import implementation
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
    """Score predicted masks by their overlap with the true ones.

    Args:
        y_pred: Predictions, shape (batch, channels, ...) in torch and (batch, ..., channels)
            elsewhere, from 0 to 1.
        y_true: Truth, of the same shape, 0 or 1.
        soft_dice: Whether to square in the denominator.
        sample_average: Whether to average over the batch.
        channel_average: Whether to average over the channels.
        channel_weights: What each channel's score is multiplied by, shape (channels,) or one that
            goes with (batch, channels).
        mask_overlap: Whether a position can be in the masks of several channels; otherwise only
            its largest prediction counts.
        threshold: Where a prediction counts as 1, else 0. None to take predictions as they are.
        empty_nan: Whether the score is NaN, rather than 0, where nothing is predicted nor true.
        epsilon: What is added to the denominator.

    Returns:
        Scores from 0 to 1, shape (batch, channels), less the axes that were averaged. Half
        precision is added up in float32.

    Raises:
        ValueError: If the predictions are of no framework that fastnet knows.

    >>> import numpy as np
    >>> dice_score(np.array([[[1.0], [0.5]]]), np.array([[[1.0], [0.0]]])).round(3)
    array([[0.8]])
    """
    return score(
        implementation(y_pred),
        y_pred,
        y_true,
        soft_dice,
        sample_average,
        channel_average,
        channel_weights,
        epsilon,
        mask_overlap,
        threshold,
        empty_nan,
    )


def score(
    functions: Any,
    y_pred: Tensor,
    y_true: Tensor,
    soft_dice: bool,
    sample_average: bool,
    channel_average: bool,
    channel_weights: Tensor | Sequence[float] | None,
    epsilon: float,
    mask_overlap: bool = True,
    threshold: float | None = None,
    empty_nan: bool = False,
) -> Tensor:
    """Do what `dice_score` does, in a framework that is known.

    Args:
        functions: The package of `fastnet.backend` that speaks it.
        y_pred: Predictions.
        y_true: Truth.
        soft_dice: Whether to square in the denominator.
        sample_average: Whether to average over the batch.
        channel_average: Whether to average over the channels.
        channel_weights: What each channel's score is multiplied by.
        epsilon: What is added to the denominator.
        mask_overlap: Whether a position can be in the masks of several channels.
        threshold: Where a prediction counts as 1.
        empty_nan: Whether the score is NaN where nothing is predicted nor true.

    Returns:
        The scores.
    """
    own, reduce_sum = y_pred, functions.reduce_sum
    half, places = _settle(own.dtype, len(own.shape), functions.CHANNEL_AXIS)
    if half:
        y_pred = functions.cast(y_pred, "float32")
    y_true = functions.cast_like(y_true, y_pred)
    if not mask_overlap:
        largest = functions.reduce_max(y_pred, [functions.CHANNEL_AXIS], True)
        y_pred = functions.where(y_pred >= largest, y_pred, 0.0)
    if threshold is not None:
        y_pred = functions.cast_like(y_pred > threshold, y_pred)
    common = reduce_sum(y_pred * y_true, places, False)
    predicted = reduce_sum(y_pred**2 if soft_dice else y_pred, places, False)
    true = reduce_sum(y_true**2 if soft_dice else y_true, places, False)
    dice = 2.0 * common / (predicted + true + epsilon)
    if channel_weights is not None:
        dice = dice * functions.cast_like(channel_weights, y_pred)
    if empty_nan:
        found = sum(functions.reduce_max(each, places, False) for each in (y_true, y_pred))
        dice = functions.where(found < 0.0001, math.nan, dice)
    if channel_average:
        dice = functions.reduce_mean(dice, (-1,), False)
    if sample_average:
        dice = functions.reduce_mean(dice, (0,), False)
    return functions.cast_like(dice, own) if half else dice


@lru_cache(maxsize=32)
def _settle(dtype: Any, rank: int, channel_axis: int) -> tuple[bool, tuple[int, ...]]:
    """Tell whether masks are of half precision, and which of their axes are places."""
    places = tuple(axis for axis in range(1, rank) if axis != channel_axis % rank)
    return "float16" in str(dtype), places  # or bfloat16
