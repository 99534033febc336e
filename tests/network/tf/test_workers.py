"""Steps of several workers under MultiWorkerMirroredStrategy, beside one process and loops by hand.

The workers are processes of their own: what runs in them are the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import MeanUnslicer, Slicer
from tests import tf_workers
from tests.tf_workers import Raised, Workers

pytestmark = [pytest.mark.tf, pytest.mark.slow]

keras = tf.keras
KERAS_3 = hasattr(keras, "ops")

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])

Batch = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(2)
    yield made
    made.end()


# ---------------------------------------------------------------------- models and data


def mlp(*middle: Any) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="tanh"),
            *middle,
            keras.layers.Dense(2),
        ]
    )


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def batches(sizes: Any = (8, 8, 4, 6, 8)) -> list[Batch]:
    made = []
    for seed, size in enumerate(sizes):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(size, 3)).astype("float32")
        made.append({"x": x, "y": np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)})
    return made


def my_part(batch: Batch) -> Batch:
    """Return a worker's rows of a batch."""
    rank, count = fastnet.backend.tf.processes.rank(), 2
    size = len(batch["x"]) // count
    return {key: value[rank * size : (rank + 1) * size] for key, value in batch.items()}


def regression(model: Any, **settings: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y_pred"),
        MeanSquaredError(("y_pred", "y"), "loss"),
        UpdateOp(model, "loss", **settings),
    ]


def values(*models: Any) -> list[np.ndarray]:
    return [np.array(weight.numpy()) for model in models for weight in model.weights]


def with_weights(model: Any, given: list[np.ndarray]) -> Any:
    """Give a model weights; there may be more of them than it has."""
    for weight, value in zip(model.weights, given, strict=False):
        weight.assign(value)
    return model


def assert_alike(one: list[np.ndarray], other: list[np.ndarray], atol: float = 1e-6) -> None:
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=atol)


def square_error(model: Any, batch: Batch) -> Any:
    return tf.reduce_mean((model(batch["x"], training=True) - batch["y"]) ** 2)


# ---------------------------------------------------------------------- plain training


def train(optimizer: Any, eager: bool) -> Any:
    keras.utils.set_random_seed(fastnet.backend.tf.processes.rank())
    model = fastnet.build(mlp, optimizer)
    before, losses = values(model), []
    network = fastnet.Network(ops=regression(model))
    for epoch in (1, 2):
        with network(mode="train", epoch=epoch, eager=eager):
            for batch in batches():
                losses.append(float(network.run_step(my_part(batch))["loss"]))
    return before, values(model), losses, len(network.traces)


def train_by_hand(before: list[np.ndarray], optimizer: Any) -> Any:
    strategy = tf.distribute.get_strategy()
    model, made = with_weights(mlp(), before), optimizer()
    made.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = square_error(model, {"x": x, "y": y})
            share = loss / strategy.num_replicas_in_sync
        gradients = tape.gradient(share, model.trainable_variables)
        made.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)), reduce_retracing=True)
    losses = []
    for batch in batches() * 2:
        part = my_part(batch)
        losses.append(float(run(tf.constant(part["x"]), tf.constant(part["y"]))))
    return values(model), losses


def alone(before: list[np.ndarray], optimizer: Any, steps: list[Batch]) -> list[np.ndarray]:
    """Train in this process, on whole batches."""
    model, made = with_weights(mlp(), before), optimizer()
    for batch in steps:
        with tf.GradientTape() as tape:
            loss = square_error(model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        made.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return values(model)


class TestTraining:
    @EITHER_WAY
    @pytest.mark.parametrize("optimizer", [sgd, adam])
    def test_as_one_process_and_as_by_hand(
        self, workers: Workers, optimizer: Any, eager: bool
    ) -> None:
        (before, after, losses, traces), second = workers.run(train, optimizer, eager)
        # the first worker's weights are everybody's
        assert_alike(before, second[0], 0)
        assert_alike(after, second[1], 0)
        assert traces == (0 if eager else 2)
        by_hand = workers.run(train_by_hand, before, optimizer)
        assert_alike(after, by_hand[0][0])
        np.testing.assert_allclose([losses, second[2]], [one[1] for one in by_hand], rtol=1e-5)
        assert_alike(after, alone(before, optimizer, batches() * 2))
