"""Keras models, batches and hand-written loops that tests of TensorFlow share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

tf = pytest.importorskip("tensorflow")

keras = tf.keras
layers = tf.keras.layers
KERAS_3 = hasattr(keras, "ops")
# those that FastEstimator makes of names, and the only ones that Keras 3 has
BY_NAME = keras.optimizers if KERAS_3 else keras.optimizers.legacy
CLASSES = {
    "adadelta": BY_NAME.Adadelta,
    "adagrad": BY_NAME.Adagrad,
    "adam": BY_NAME.Adam,
    "adamax": BY_NAME.Adamax,
    "rmsprop": BY_NAME.RMSprop,
    "sgd": BY_NAME.SGD,
}
# classes of both kinds, where there are two
KINDS = [BY_NAME] if KERAS_3 else [keras.optimizers.legacy, keras.optimizers]

Batch = dict[str, Any]


def line() -> Any:
    """Return the smallest model there is: (batch, 2) -> (batch, 1)."""
    return keras.Sequential([layers.Input((2,)), layers.Dense(1)])


def mlp() -> Any:
    """Return a network of (batch, 6) -> (batch, 3)."""
    return keras.Sequential(
        [layers.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3)]
    )


def batches(count: int, size: int = 8, seed: int = 0) -> list[Batch]:
    """Return batches of "x" and of class indices "t" below 3."""
    source = np.random.default_rng(seed)
    return [
        {
            "x": tf.constant(source.standard_normal((size, 6)), tf.float32),
            "t": tf.constant(source.integers(0, 3, size)),
        }
        for _ in range(count)
    ]


def twins(make: Callable[[], Any], seed: int = 0) -> tuple[Any, Any]:
    """Return two models of equal weights: one to build, one for the hand-written loop."""
    keras.utils.set_random_seed(seed)
    model, twin = make(), make()
    twin.set_weights(model.get_weights())
    return model, twin


def weights(model: Any) -> list[Any]:
    """Copy all weights of a model."""
    return [np.array(weight) for weight in model.get_weights()]


def same_weights(model: Any, other: Any) -> bool:
    """Return whether the weights of two models, or copies of them, are equal bit for bit."""
    one, two = (each if isinstance(each, list) else weights(each) for each in (model, other))
    return len(one) == len(two) and all(map(np.array_equal, one, two))


def assert_close(model: Any, other: Any, rtol: float = 1e-5) -> None:
    """Check that the weights of two models are equal but for rounding."""
    one, two = (each if isinstance(each, list) else weights(each) for each in (model, other))
    assert len(one) == len(two)
    for own, wanted in zip(one, two, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=rtol, atol=rtol / 10)


def supervised(model: Any, **update: Any) -> list[Any]:
    """Return the ops of a classifier of logits."""
    return [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss", **update),
    ]


def regression(model: Any, **update: Any) -> list[Any]:
    """Return the ops of a model that is to give zeros."""
    return [
        ModelOp(model, "x", "y"),
        LambdaOp(lambda y: tf.reduce_mean(tf.square(tf.cast(y, "float32"))), "y", "loss"),
        UpdateOp(model, "loss", **update),
    ]


def train(network: Any, data: Iterable[Batch], eager: bool = False, **context: Any) -> list[Batch]:
    """Open a network and run a step for each batch."""
    with network(**{"mode": "train", "epoch": 1, "eager": eager, **context}):
        return [network.run_step(batch) for batch in data]


def infer(network: Any, batch: Batch, mode: str = "infer", eager: bool = False) -> Batch:
    """Open a network for a single step."""
    with network(mode=mode, epoch=1, eager=eager):
        result: Batch = network.run_step(batch)
    return result


def loop(
    model: Any,
    optimizer: Any,
    data: Iterable[Batch],
    loss_of: Callable[[Any, Batch], Any],
    merge: int = 1,
) -> None:
    """Train a model by hand, with the mean of the gradients of some steps at a time."""
    sums: list[Any] = []
    for number, batch in enumerate(data, 1):
        with tf.GradientTape() as tape:
            loss = loss_of(model(batch["x"], training=True), batch)
            loss = tf.reduce_mean(loss + sum(tf.cast(own, loss.dtype) for own in model.losses))
            if hasattr(optimizer, "get_scaled_loss"):
                loss = optimizer.get_scaled_loss(loss)
            elif hasattr(optimizer, "scale_loss"):
                loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        if hasattr(optimizer, "get_unscaled_gradients"):
            gradients = optimizer.get_unscaled_gradients(gradients)
        if merge > 1:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            sums = list(map(tf.add, sums, gradients)) if sums else gradients
            if number % merge:
                continue
            gradients, sums = [total / merge for total in sums], []
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def classify(y: Any, batch: Batch) -> Any:
    """Return a classifier's losses, from logits."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["t"], logits=y)


def to_zero(y: Any, batch: Batch) -> Any:
    """Return the loss of `regression`."""
    return tf.reduce_mean(tf.square(tf.cast(y, "float32")))


def variables_of(optimizer: Any) -> Sequence[Any]:
    """List an optimizer's variables."""
    found = optimizer.variables
    return list(found() if callable(found) else found)
