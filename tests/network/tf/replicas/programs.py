"""Models and steps to spread over devices, and the same steps on one device by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.tf.replicas.devices import keras, under, value_of


def mlp(regularizer: Any = None) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="tanh", kernel_regularizer=regularizer),
            keras.layers.Dense(2, use_bias=False),
        ]
    )


def numbers(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3)).astype("float32")
    return x, np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)


def regression(model: Any, **settings: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y_pred"),
        MeanSquaredError(("y_pred", "y"), "loss"),
        UpdateOp(model, "loss", **settings),
    ]


def same_model(model: Any, make: Callable[[], Any]) -> Any:
    """Make a model on one device, with the weights of another one."""
    with under(None):
        twin = make()
    for mine, other in zip(twin.weights, model.weights, strict=True):
        mine.assign(value_of(other))
    return twin


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def square_error(model: Any, x: Any, y: Any) -> tf.Tensor:
    return tf.reduce_mean((model(x, training=True) - y) ** 2)


def by_hand(
    model: Any, optimizer: Any, loss_of: Callable[[Any, Any], tf.Tensor], steps: Sequence[Any]
) -> list[float]:
    """Train a model on one device."""
    losses = []
    for x, y in steps:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses


STEPS = [numbers(size, seed) for seed, size in enumerate([8, 8, 4, 6, 8])]


IMAGES = np.arange(5 * 4 * 6, dtype="float32").reshape(5, 4, 6)


def twice(x: Any) -> Any:
    return x * 2


def mean(x: Any) -> Any:
    return tf.reduce_mean(x)
