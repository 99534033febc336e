"""A regression that tests of strategies share, with its hand-written loop on one device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp

keras = tf.keras
Batch = dict[str, np.ndarray]


def mlp() -> Any:
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2, use_bias=False)]
    return keras.Sequential([keras.layers.Input((3,)), *layers])


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def numbers(size: int, seed: int) -> Batch:
    x = np.random.default_rng(seed).normal(size=(size, 3)).astype("float32")
    return {"x": x, "y": np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)}


STEPS = [numbers(size, seed) for seed, size in enumerate([8, 8, 4, 6, 8, 2])]


def regression(model: Any, **settings: Any) -> list[Any]:
    loss = MeanSquaredError(("y_pred", "y"), "loss")
    return [ModelOp(model, "x", "y_pred"), loss, UpdateOp(model, "loss", **settings)]


def by_hand(
    model: Any, optimizer: Any, steps: Iterable[Batch], merge: int = 1, norm: float | None = None
) -> list[float]:
    """Train a model on one device, and return its losses."""
    losses, sums = [], None
    for number, batch in enumerate(steps, 1):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch["x"], training=True) - batch["y"]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
        losses.append(float(loss))
        if number % merge == 0:
            means = [one / merge for one in sums]
            means = means if norm is None else tf.clip_by_global_norm(means, norm)[0]
            optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
            sums = None
    return losses
