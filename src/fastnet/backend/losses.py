"""Loss functions."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten
from fastnet.types import Tensor

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "dice_score",
    "focal_loss",
    "hinge",
    "huber",
    "l1_loss",
    "mean_squared_error",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
]

ClassWeightTable: TypeAlias = "Mapping[int, float] | tf.lookup.StaticHashTable"

# Masks whose largest values add up to less are empty.
_EMPTY = 1e-4


def check_class_weights(class_weights: Mapping[int, float], count: int) -> None:
    """Raise a ValueError if there are weights of indices that none of `count` classes has."""
    wrong = [index for index in class_weights if not 0 <= index < count]
    if wrong:
        raise ValueError(
            f"class_weights has weights of the classes {wrong}, but the predictions are of {count} "
            f"classes, with the indices 0 to {count - 1}."
        )


def fractional_label(dtype: Any, label: float) -> ValueError:
    """Return the error for a class label that is not a whole number."""
    return ValueError(
        f"Class labels must be whole numbers, but one of dtype {dtype} is {label:g}. Cast them to "
        "an integer dtype if they are to be truncated."
    )


def binary_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
) -> Tensor:
    """Compute the binary cross-entropy loss.

    Args:
        y_pred: Predictions, floating point, shape (batch, ...).
        y_true: Labels from 0 to 1, with as many elements.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses.
        class_weights: The weights of classes by index, by default 1. In TensorFlow also a
            `tf.lookup.StaticHashTable`.

    Returns:
        A scalar, or one loss per sample, shape (batch,).

    >>> import torch
    >>> binary_crossentropy(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    tensor(0.6931)
    """
    return backend_of(y_pred).binary_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
) -> Tensor:
    """Compute the cross-entropy loss for one-hot labels.

    Args:
        y_pred: Predictions, shape (batch, classes, ...) in torch, and (..., classes) elsewhere.
        y_true: One-hot labels, or probabilities of the classes, of the same shape.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses.
        class_weights: The weights of classes by index; see `binary_crossentropy`.

    Returns:
        A scalar, or the losses, of the shape of `y_pred` without the class axis.

    >>> import torch
    >>> categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """
    return backend_of(y_pred).categorical_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def sparse_categorical_crossentropy(
    y_pred: Tensor,
    y_true: Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
) -> Tensor:
    """Compute the cross-entropy loss for class indices.

    Args:
        y_pred: Predictions, shape (batch, classes, ...) in torch, and (..., classes) elsewhere.
        y_true: Class indices, of the shape of `y_pred` without the class axis. A floating point
            dtype is accepted if every label is a whole number.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses.
        class_weights: The weights of classes by index; see `binary_crossentropy`.

    Returns:
        A scalar, or the losses, of the shape of `y_true`.

    Raises:
        ValueError: If a label has a fraction. On a GPU, in a compiled step and in a TensorFlow
            graph, it is handled as an index out of range instead, which is never truncated.

    >>> import torch
    >>> sparse_categorical_crossentropy(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931)
    """
    return backend_of(y_pred).sparse_categorical_crossentropy(
        y_pred, y_true, from_logits, average_loss, class_weights
    )


def mean_squared_error(y_true: Tensor, y_pred: Tensor, average_loss: bool = False) -> Tensor:
    """Return the mean squared error along the last axis.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        average_loss: Whether to return the mean of all losses, a scalar.

    >>> import torch
    >>> mean_squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
    tensor([2.])
    """
    return backend_of(y_pred).mean_squared_error(y_true, y_pred, average_loss)


def hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Return the hinge loss, ``mean(max(1 - y_true * y_pred, 0))``, along the last axis.

    Args:
        y_true: Labels, -1 or 1, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    >>> import torch
    >>> hinge(torch.tensor([[1, -1]]), torch.tensor([[0.5, -2.0]]))
    tensor([0.2500])
    """
    return backend_of(y_pred).hinge(y_true, y_pred)


def huber(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Compute the Huber loss along the last axis.

    An error ``e`` contributes ``0.5 * e**2`` up to `beta`, ``beta * (|e| - 0.5 * beta)`` above.

    Args:
        y_true: Labels, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: The error at which the loss becomes linear.

    Returns:
        The mean losses, of the shape without the last axis. In TensorFlow, losses with one axis are
        not averaged.

    Raises:
        ValueError: If `beta` is not positive.

    >>> import torch
    >>> huber(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([3.2500])
    """
    _check_beta("huber", beta)
    return backend_of(y_pred).huber(y_true, y_pred, beta)


def l1_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Compute the mean absolute error along the last axis; see `mean_squared_error`.

    Returns:
        The losses, of the shape without the last axis. In TensorFlow, losses with one axis are not
        averaged.

    >>> import torch
    >>> l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, -4.0]]))
    tensor([2.5000])
    """
    return backend_of(y_pred).l1_loss(y_true, y_pred)


def smooth_l1_loss(y_true: Tensor, y_pred: Tensor, beta: float = 1.0) -> Tensor:
    """Return the smooth L1 loss, averaged along the last axis; see `huber` for the arguments.

    An error ``e`` contributes ``0.5 * e**2 / beta`` below `beta`, ``|e| - 0.5 * beta`` above.

    >>> import torch
    >>> smooth_l1_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), beta=2.0)
    tensor([1.6250])
    """
    _check_beta("smooth_l1_loss", beta)
    return backend_of(y_pred).smooth_l1_loss(y_true, y_pred, beta)


def _check_beta(loss: str, beta: float) -> None:
    if beta <= 0:
        raise ValueError(f"The beta of {loss} must be a number above 0, not {shorten(beta)}.")


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
    functions = backend_of(y_pred)
    dtype_source = y_pred
    is_half, axes, spatial, total = _dice_layout(
        functions, y_pred.dtype, len(functions.shape_of(y_pred))
    )
    if is_half:
        y_pred = functions.cast(y_pred, "float32")
    y_true = functions.cast_like(y_true, y_pred)
    if not mask_overlap:
        largest = functions.reduce_max(y_pred, (functions.CHANNEL_AXIS,), True)
        y_pred = functions.where(y_pred >= largest, y_pred, 0.0)
    if threshold is not None:
        y_pred = functions.cast_like(y_pred > threshold, y_pred)
    add, multiply = functions.add, functions.multiply
    intersection = total(multiply(y_pred, y_true), spatial)
    if soft_dice:
        denominator = add(total(y_pred**2, spatial), total(y_true**2, spatial))
    else:
        denominator = add(total(y_pred, spatial), total(y_true, spatial))
    dice = functions.divide(multiply(intersection, 2.0), add(denominator, epsilon))
    if channel_weights is not None:
        dice = multiply(dice, functions.cast_like(channel_weights, y_pred))
    if empty_nan:
        largest = sum(functions.reduce_max(mask, axes, False) for mask in (y_true, y_pred))
        dice = functions.where(largest < _EMPTY, math.nan, dice)
    if channel_average:
        dice = functions.mean_of(dice, -1)
    if sample_average:
        dice = functions.mean_of(dice, 0)
    return functions.cast_like(dice, dtype_source) if is_half else dice


@lru_cache(maxsize=32)
def _dice_layout(
    functions: Any, dtype: Any, rank: int
) -> tuple[bool, tuple[int, ...], Any, Callable[..., Tensor]]:
    """Return whether masks are in half precision, their spatial axes, and how to sum over these."""
    channels = functions.CHANNEL_AXIS % rank
    axes = tuple(axis for axis in range(1, rank) if axis != channels)
    is_half = "float16" in str(dtype)  # or bfloat16
    # torch.sum treats an empty tuple of axes as all axes; reduce_sum does not.
    if not axes:
        return is_half, axes, axes, partial(functions.reduce_sum, keepdims=False)
    spatial = axes[0] if len(axes) == 1 else functions.prepare_axes(axes)
    return is_half, axes, spatial, functions.sum_of


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
    check_focal_settings(
        "focal_loss", gamma, alpha, shape_reduction or "none", sample_reduction or "none"
    )
    options = gamma, alpha, from_logits, normalize, shape_reduction, sample_reduction
    return compute_focal_loss(backend_of(y_pred), y_true, y_pred, *options, label_smoothing)


def check_focal_settings(
    title: str, gamma: Any, alpha: Any, shape_reduction: Any, sample_reduction: Any
) -> None:
    """Raise a ValueError if a parameter of `focal_loss` is out of range."""
    for name, number, maximum in (("gamma", gamma, math.inf), ("alpha", alpha, 1)):
        if not hasattr(number, "__float__") or not 0 <= number <= maximum:
            raise ValueError(
                f"{title}'s {name} must be a number from 0 to {maximum}, not {shorten(number)}."
            )
    reductions = {"shape_reduction": shape_reduction, "sample_reduction": sample_reduction}
    for name, value in reductions.items():
        if value not in ("sum", "mean", "none"):
            raise ValueError(
                f"{title}'s {name} must be 'sum', 'mean' or 'none', not {shorten(value)}."
            )


def compute_focal_loss(
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
    """Compute `focal_loss` by the functions of a backend package, without validation."""
    y_true = functions.cast_like(y_true, y_pred)
    smooth = y_true
    if label_smoothing:
        smooth = y_true * (1.0 - label_smoothing) + 0.5 * label_smoothing
    loss = functions.focal(smooth, y_pred, gamma, alpha, from_logits)
    axes = tuple(range(1, len(functions.shape_of(loss))))
    # torch.sum treats an empty tuple of axes as all axes; reduce_sum does not.
    total = functions.sum_of if axes else functions.reduce_sum
    sample_axes = axes[0] if len(axes) == 1 else axes
    if normalize:
        count = functions.clip_by_value(total(y_true, sample_axes, keepdims=True), 1, None)
        loss = functions.divide(loss, count)
    if shape_reduction == "sum":
        loss = total(loss, sample_axes, keepdims=False)
    elif shape_reduction == "mean":
        loss = functions.reduce_mean(loss, axes, False)
    if sample_reduction == "mean":
        loss = functions.mean_of_losses(loss)
    elif sample_reduction == "sum":
        loss = functions.sum_of(loss)
    return loss
