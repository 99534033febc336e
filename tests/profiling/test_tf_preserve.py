"""`fastnet.profile` restores the network in TensorFlow: training continues like that of a twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

pytestmark = pytest.mark.tf


def make(merge: int, dropout: float = 0.0) -> TFNetwork:
    tf.keras.utils.set_random_seed(0)

    def net() -> Any:
        layers = tf.keras.layers
        return tf.keras.Sequential(
            [
                layers.Input((6,)),
                layers.Dense(8),
                layers.Dropout(dropout),
                layers.BatchNormalization(),
                layers.Dense(3, activation="softmax"),
            ]
        )

    model: Any = fastnet.build(net, lambda: tf.keras.optimizers.Adam(0.01))
    return TFNetwork(
        [
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "label"), "loss"),
            UpdateOp(model, "loss", merge_grad=merge),
        ]
    )


def batch() -> dict[str, Any]:
    x = np.random.default_rng(1).normal(size=(5, 6)).astype("float32")
    return {"x": tf.constant(x), "label": tf.constant([0, 1, 2, 1, 0])}


def train(network: TFNetwork, steps: int) -> list[float]:
    with network("train", 1):
        return [float(tf.reduce_mean(network.run_step(batch())["loss"])) for _ in range(steps)]


def state(network: TFNetwork) -> list[Any]:
    (model,) = network.models
    optimizer = model.current_optimizer.variables
    variables = optimizer() if callable(optimizer) else optimizer
    return [one.numpy() for one in (*model.variables, *variables)]


@pytest.mark.parametrize(
    ("before", "merge", "eager"), [(0, 1, False), (3, 4, False), (3, 1, True), (0, 4, True)]
)
def test_training_goes_on_as_if_nothing_had_been(before: int, merge: int, eager: bool) -> None:
    plain, profiled = make(merge), make(merge)
    losses, states = [], []
    for network in (plain, profiled):
        found = train(network, before)
        if network is profiled:
            made = fastnet.profile(network, batch(), steps=6, eager=eager)
            title = str(made).splitlines()[0]
            assert title.endswith(": 6 steps; the models were restored")
        losses.append(found + train(network, 5))
        states.append(state(network))
        assert len(network.traces) == 1
    assert losses[0] == losses[1]
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_numbers_go_on_as_they_would() -> None:
    network = make(1)
    generator = tf.random.get_global_generator()
    generator.reset_from_seed(3)
    expected = generator.normal((2,)).numpy()
    generator.reset_from_seed(3)
    network.ops.insert(
        0, fastnet.op.tensorop.LambdaOp(lambda x: x + generator.normal(()), "x", "x")
    )
    fastnet.profile(network, batch(), steps=3)
    np.testing.assert_array_equal(generator.normal((2,)).numpy(), expected)


def test_weights_that_are_yet_to_come() -> None:
    class Late(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model: Any = fastnet.build(Late, "adam")
    network = TFNetwork([ModelOp(model, "x", "y")])
    with pytest.raises(ValueError, match="has no variables before it knows"):
        fastnet.profile(network, batch(), steps=1)
