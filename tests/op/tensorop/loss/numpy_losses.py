"""Losses in plain numpy, with loops where they are clearer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def softmax(logits: Array) -> Array:
    """Turn logits into probabilities along axis 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    out: Array = powers / powers.sum(axis=1, keepdims=True)
    return out


def sigmoid(logits: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-logits))
    return out


def binary(y_pred: Array, y_true: Array, weights: Mapping[int, float] | None = None) -> Array:
    """Return a loss for each sample."""
    y_true = y_true.reshape(y_pred.shape).astype(float)
    losses = -(y_true * np.log(y_pred) + (1 - y_true) * np.log(1 - y_pred))
    for index, truth in np.ndenumerate(y_true):
        losses[index] *= (weights or {}).get(int(truth), 1)
    out: Array = losses.reshape(len(losses), -1).mean(axis=1)
    return out


def categorical(y_pred: Array, y_true: Array, weights: Mapping[int, float] | None = None) -> Array:
    """Return a loss for each sample, and each place of a sample that has several."""
    losses = -(y_true * np.log(y_pred)).sum(axis=1)
    for index, truth in np.ndenumerate(y_true.argmax(axis=1)):
        losses[index] *= (weights or {}).get(int(truth), 1)
    out: Array = losses
    return out


def sparse(y_pred: Array, y_true: Array, weights: Mapping[int, float] | None = None) -> Array:
    """Return a loss for each element of the truth; one of -100 has none."""
    losses = np.zeros(y_true.shape)
    for index, truth in np.ndenumerate(y_true):
        if truth != -100:
            place = (index[0], int(truth), *index[1:])
            losses[index] = -np.log(y_pred[place]) * (weights or {}).get(int(truth), 1)
    return losses


def mean_squared_error(y_pred: Array, y_true: Array) -> Array:
    """Return a loss for each row."""
    out: Array = ((y_pred - y_true) ** 2).mean(axis=-1)
    return out
