"""Losses on numpy arrays, their classes and channels last.

Arguments and results are those of the functions of the same names in `fastnet.backend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "focal",
    "hinge",
    "huber",
    "l1_loss",
    "mean_of_losses",
    "mean_squared_error",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
]

Array: TypeAlias = NDArray[Any]


def binary_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> Any:
    """Compare yes-or-no predictions with the truth."""
    y_true = y_true.astype(y_pred.dtype).reshape(y_pred.shape)
    loss = _binary_entropy(y_true, y_pred, from_logits)
    if class_weights:
        loss = loss * _weights_of(y_true, class_weights, loss.dtype)
    loss = loss.reshape(len(loss), -1).mean(axis=1)
    return loss.mean() if average_loss else loss


def categorical_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> Any:
    """Compare class predictions with one-hot truth."""
    loss = -(y_true * _log_probabilities(y_pred, from_logits)).sum(axis=-1)
    if class_weights:
        loss = loss * _weights_of(y_true.argmax(axis=-1), class_weights, loss.dtype)
    return loss.mean() if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> Any:
    """Compare class predictions with class indices."""
    classes = y_true.reshape(y_pred.shape[:-1]).astype("int64")
    chosen = np.take_along_axis(_log_probabilities(y_pred, from_logits), classes[..., None], -1)
    loss = -chosen[..., 0]
    if class_weights:
        loss = loss * _weights_of(classes, class_weights, loss.dtype)
    return loss.mean() if average_loss else loss


def mean_of_losses(losses: Array) -> Any:
    """Average losses, of which there may be any number of axes."""
    return np.mean(losses)


def mean_squared_error(y_true: Array, y_pred: Array, average_loss: bool = False) -> Any:
    """Average squared differences over the last axis."""
    squares = (y_pred - y_true) ** 2
    return squares.mean() if average_loss else squares.mean(axis=-1)


def hinge(y_true: Array, y_pred: Array) -> Any:
    """Average over the last axis how far predictions are from the right side of the margin."""
    return np.maximum(1.0 - y_true.astype(y_pred.dtype) * y_pred, 0).mean(axis=-1)


def l1_loss(y_true: Array, y_pred: Array) -> Any:
    """Average absolute differences over the last axis."""
    return np.abs(y_pred - y_true).mean(axis=-1)


def smooth_l1_loss(y_true: Array, y_pred: Array, beta: float = 1.0) -> Any:
    """Average differences over the last axis, small ones squared and divided by `beta`."""
    gap = np.abs(y_pred - y_true)
    return np.where(gap < beta, 0.5 * gap**2 / beta, gap - 0.5 * beta).mean(axis=-1)


def huber(y_true: Array, y_pred: Array, beta: float = 1.0) -> Any:
    """Average differences over the last axis, small ones squared, large ones times `beta`."""
    gap = np.abs(y_pred - y_true)
    return np.where(gap <= beta, 0.5 * gap**2, beta * (gap - 0.5 * beta)).mean(axis=-1)


def focal(y_true: Array, y_pred: Array, gamma: float, alpha: float, from_logits: bool) -> Array:
    """Compare each yes-or-no prediction with the truth, those nearly right counting less."""
    entropy = _binary_entropy(y_true, y_pred, from_logits)
    probability = 1 / (1 + np.exp(-y_pred)) if from_logits else y_pred
    right = probability * y_true + (1 - probability) * (1 - y_true)
    weight = alpha * y_true + (1 - alpha) * (1 - y_true)
    loss: Array = weight * (entropy * (1 - right) ** gamma)
    return loss


def _binary_entropy(y_true: Array, y_pred: Array, from_logits: bool) -> Array:
    if from_logits:
        entropy: Array = np.logaddexp(0, y_pred) - y_pred * y_true
    else:
        # a logarithm of 0 counts as -100, as in torch
        with np.errstate(divide="ignore"):
            yes, no = (np.maximum(np.log(each), -100) for each in (y_pred, 1 - y_pred))
        entropy = -(y_true * yes + (1 - y_true) * no)
    return entropy.astype(y_pred.dtype)


def _log_probabilities(y_pred: Array, from_logits: bool) -> Array:
    if not from_logits:
        return np.asarray(np.log(y_pred))
    shifted = y_pred - y_pred.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _weights_of(classes: Array, class_weights: Mapping[int, float], dtype: Any) -> Array:
    weights = np.ones(classes.shape, dtype=dtype)
    for index, weight in class_weights.items():
        weights[classes == index] = weight
    return weights
