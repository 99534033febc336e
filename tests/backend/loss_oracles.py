"""Losses in plain numpy, and slopes of them, for the losses of every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def hinge(true: Array, pred: Array) -> Array:
    return np.maximum(1 - true * pred, 0).mean(-1)


def l1_loss(true: Array, pred: Array) -> Array:
    return np.abs(true - pred).mean(-1)


def smooth_l1_loss(true: Array, pred: Array, beta: float = 1.0) -> Array:
    gap = np.abs(true - pred)
    return np.where(gap < beta, gap**2 / 2 / beta, gap - beta / 2).mean(-1)


def huber(true: Array, pred: Array, beta: float = 1.0) -> Array:
    gap = np.abs(true - pred)
    return np.where(gap < beta, gap**2 / 2, beta * (gap - beta / 2)).mean(-1)


def focal_loss(
    true: Array,
    pred: Array,
    gamma: float = 2.0,
    alpha: float = 0.25,
    from_logits: bool = False,
    normalize: bool = True,
    shape_reduction: str = "sum",
    sample_reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    count = np.maximum(true.reshape(len(true), -1).sum(1), 1)
    soft = true + label_smoothing * (0.5 - true)
    odds = 1 / (1 + np.exp(-pred)) if from_logits else pred
    entropy = -soft * np.log(odds) - (1 - soft) * np.log(1 - odds)
    wrong = 1 - (odds * soft + (1 - odds) * (1 - soft))
    losses = alpha * soft + (1 - alpha) * (1 - soft)
    losses = losses * entropy * wrong**gamma
    if normalize:
        losses = losses / count.reshape([-1] + [1] * (losses.ndim - 1))
    axes = tuple(range(1, losses.ndim))
    if shape_reduction != "none":
        losses = getattr(losses, shape_reduction)(axis=axes)
    return losses if sample_reduction == "none" else getattr(losses, sample_reduction)()


# name, oracle, settings, kind of data
CASES: list[tuple[str, Callable[..., Array], dict[str, Any], str]] = [
    ("hinge", hinge, {}, "signs"),
    ("l1_loss", l1_loss, {}, "numbers"),
    ("smooth_l1_loss", smooth_l1_loss, {}, "numbers"),
    ("smooth_l1_loss", smooth_l1_loss, {"beta": 0.5}, "numbers"),
    ("huber", huber, {}, "numbers"),
    ("huber", huber, {"beta": 2.0}, "numbers"),
    ("focal_loss", focal_loss, {}, "odds"),
    ("focal_loss", focal_loss, {"from_logits": True}, "logits"),
    ("focal_loss", focal_loss, {"normalize": False, "gamma": 1.5, "alpha": 0.75}, "odds"),
    ("focal_loss", focal_loss, {"shape_reduction": "mean", "sample_reduction": "sum"}, "odds"),
    ("focal_loss", focal_loss, {"shape_reduction": "none", "sample_reduction": "none"}, "odds"),
    ("focal_loss", focal_loss, {"label_smoothing": 0.2, "sample_reduction": "none"}, "odds"),
]
IDS = ["-".join([name, *map(str, settings)]) for name, _, settings, _ in CASES]


def data(kind: str, shape: tuple[int, ...] = (4, 3, 5)) -> tuple[Array, Array]:
    """Make truth and predictions that half precision holds exactly, away from any corner."""
    source = np.random.default_rng(len(kind))
    pred = source.integers(-12, 12, shape) / 4 + 1 / 16
    if kind == "numbers":
        return source.integers(-3, 3, shape).astype(float), pred
    bits = source.integers(0, 2, shape).astype(float)
    if kind == "odds":
        return bits, source.integers(1, 16, shape) / 16
    return (2 * bits - 1, pred) if kind == "signs" else (bits, pred)


def slopes(loss: Callable[[Array], Array], pred: Array) -> Array:
    """Differentiate the sum of a loss by the predictions, numerically."""
    out = np.zeros_like(pred)
    for place in np.ndindex(pred.shape):
        near = pred.copy()
        near[place] += 1e-5
        high = loss(near).sum()
        near[place] -= 2e-5
        out[place] = (high - loss(near).sum()) / 2e-5
    return out


def dice_score(
    pred: Array,
    true: Array,
    soft_dice: bool = False,
    sample_average: bool = False,
    channel_average: bool = False,
    channel_weights: Any = None,
    mask_overlap: bool = True,
    threshold: float | None = None,
    empty_nan: bool = False,
    epsilon: float = 1e-6,
) -> Array:
    """Score (batch, channels, ...) masks, one after the other."""
    if not mask_overlap:
        pred = np.where(pred == pred.max(1, keepdims=True), pred, 0)
    if threshold is not None:
        pred = (pred > threshold).astype(float)
    scores = np.zeros(pred.shape[:2])
    for sample, channel in np.ndindex(scores.shape):
        one, two = pred[sample, channel], true[sample, channel]
        power = 2 if soft_dice else 1
        size = (one**power).sum() + (two**power).sum()
        scores[sample, channel] = 2 * (one * two).sum() / (size + epsilon)
        if channel_weights is not None:
            scores[sample, channel] *= channel_weights[channel]
        if empty_nan and not one.any() and not two.any():
            scores[sample, channel] = np.nan
    if channel_average:
        scores = scores.mean(1)
    return scores.mean(0) if sample_average else scores


DICE: list[dict[str, Any]] = [
    {},
    {"soft_dice": True},
    {"sample_average": True},
    {"channel_average": True, "sample_average": True},
    {"channel_weights": [0.5, 2.0, 1.0]},
    {"mask_overlap": False},
    {"threshold": 0.5},
    {"threshold": 0.97, "empty_nan": True},
    {"epsilon": 1.0},
]


def masks() -> tuple[Array, Array]:
    """Make predictions without ties, and truth, of shape (batch, channels, 4, 2); some is empty."""
    source = np.random.default_rng(0)
    pred = source.permutation(np.arange(1, 49)).reshape(2, 3, 4, 2) / 64
    true = source.integers(0, 2, pred.shape).astype(float)
    true[0, 1] = 0
    return pred, true
