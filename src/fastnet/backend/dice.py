"""How well predicted masks overlap true ones, for the tensors of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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
    own = y_pred
    half, axes, places, total = _settle(functions, own.dtype, len(functions.shape_of(own)))
    if half:
        y_pred = functions.cast(y_pred, "float32")
    y_true = functions.cast_like(y_true, y_pred)
    if not mask_overlap:
        largest = functions.reduce_max(y_pred, [functions.CHANNEL_AXIS], True)
        y_pred = functions.where(y_pred >= largest, y_pred, 0.0)
    if threshold is not None:
        y_pred = functions.cast_like(y_pred > threshold, y_pred)
    add, multiply = functions.add, functions.multiply
    common = total(multiply(y_pred, y_true), places)
    if soft_dice:
        both = add(total(y_pred**2, places), total(y_true**2, places))
    else:
        both = add(total(y_pred, places), total(y_true, places))
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
    return functions.cast_like(dice, own) if half else dice


@lru_cache(maxsize=32)
def _settle(
    functions: Any, dtype: Any, rank: int
) -> tuple[bool, tuple[int, ...], Any, Callable[..., Tensor]]:
    """Settle what masks of a type and a rank have in common.

    Returns:
        Whether they are of half precision, which of their axes are places, and these as they are
        given to what adds up, and that.
    """
    channels = functions.CHANNEL_AXIS % rank
    axes = tuple(axis for axis in range(1, rank) if axis != channels)
    half = "float16" in str(dtype)  # or bfloat16
    if not axes:
        return half, axes, axes, partial(functions.reduce_sum, keepdims=False)
    places = axes[0] if len(axes) == 1 else functions.settled_axes(axes)
    return half, axes, places, functions.sum_of
