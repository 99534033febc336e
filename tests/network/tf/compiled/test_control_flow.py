"""Conditions, loops and recurrent layers in compiled steps, beside hand-written loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import (
    KERAS_3,
    assert_close,
    classify,
    keras,
    layers,
    loop,
    tf,
    train,
    twins,
)
from tests.network.tf.compiled.steps import fallbacks, is_compiled, momentum, warned

pytestmark = pytest.mark.tf

SIZES = (4, 3, 4, 1, 4, 4)


class Scaling(layers.Layer):
    """Has a weight for each column."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        super().build(shape)


class Conditional(Scaling):
    def call(self, x: Any) -> Any:
        positive = tf.reduce_sum(x) > 0
        return tf.cond(positive, lambda: tf.exp(x * self.scale), lambda: x * self.scale * 2)


class Branching(Scaling):
    """Has an `if` for AutoGraph."""

    def call(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            y = tf.tanh(x * self.scale)
        else:
            y = x * self.scale * self.scale
        return y


class Switching(Scaling):
    def call(self, x: Any) -> Any:
        branches = [lambda: x * self.scale, lambda: tf.tanh(x) * self.scale, lambda: x - self.scale]
        return tf.switch_case(tf.cast(tf.reduce_sum(tf.abs(x)), "int32") % 3, branches)


class Looping(Scaling):
    def call(self, x: Any) -> Any:
        def body(index: Any, y: Any) -> Any:
            return index + 1, tf.tanh(y * self.scale)

        start = tf.constant(0), x
        return tf.while_loop(lambda index, y: index < 3, body, start, maximum_iterations=3)[1]


def _around(*inner: Any) -> Any:
    return keras.Sequential([layers.Input((6,)), *inner, layers.Dense(3)])


def _recurrent(*inner: Any) -> Any:
    return keras.Sequential([layers.Input((6,)), layers.Reshape((3, 2)), *inner, layers.Dense(3)])


MODELS: dict[str, Callable[[], Any]] = {
    "cond": lambda: _around(Conditional()),
    "switch": lambda: _around(Switching()),
    "while": lambda: _around(Looping()),
    "lstm": lambda: _recurrent(layers.LSTM(4)),
    "gru": lambda: _recurrent(layers.GRU(4)),
    "masked": lambda: _recurrent(
        layers.Masking(), layers.LSTM(3, return_sequences=True), layers.Bidirectional(layers.GRU(2))
    ),
}
if KERAS_3:
    MODELS["spectral norm"] = lambda: _around(layers.SpectralNormalization(layers.Dense(5)))
else:  # Keras 3 lets no AutoGraph into its models.
    MODELS["if"] = lambda: _around(Branching())


def _data() -> list[dict[str, Any]]:
    source = np.random.default_rng(0)
    return [
        {
            "x": tf.constant(source.standard_normal((size, 6)), tf.float32),
            "t": tf.constant(source.integers(0, 3, size)),
        }
        for size in SIZES
    ]


SLOW = ("while", "gru", "masked")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MODELS]
)
def test_layers_with_control_flow_are_compiled(name: str) -> None:
    made, twin = twins(MODELS[name])
    model = fastnet.build(lambda: made, momentum, model_name="model")
    ops = [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss"),
    ]
    network = TFNetwork(ops, compile=True)
    data = _data()
    train(network, data)
    assert is_compiled(network)
    assert not any(trace.unverified for trace in network.traces)
    loop(twin, momentum(), data, classify)
    assert_close(model, twin, 1e-4)


def test_loss_of_sequences_is_compiled_for_each_batch_size() -> None:
    made, twin = twins(lambda: keras.Sequential([layers.Input((4, 6)), layers.Dense(3)]))
    model = fastnet.build(lambda: made, momentum, model_name="model")
    source = np.random.default_rng(0)
    data = [
        {
            "x": tf.constant(source.standard_normal((size, 4, 6)), tf.float32),
            "t": tf.constant(source.integers(0, 3, (size, 4))),
        }
        for size in SIZES
    ]
    ops = [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True, form="sparse"),
        UpdateOp(model, "loss"),
    ]
    network = TFNetwork(ops, compile=True)
    train(network, data)
    assert is_compiled(network)
    assert len(network.traces) == 3
    loop(twin, momentum(), data, lambda y, batch: tf.reduce_mean(classify(y, batch)))
    assert_close(model, twin, 1e-4)


class Printing(layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.uniform(tf.shape(x)) * 0


def test_reason_names_the_layer_and_comes_once() -> None:
    made = _around(Printing(name="printing"), layers.Dense(4), Printing(name="other"))
    model = fastnet.build(lambda: made, momentum, model_name="model")
    network = TFNetwork(ModelOp(model, "x", "y"), compile=True)
    with warned() as texts:
        train(network, [{"x": one["x"]} for one in _data()], mode="infer")
    op = "ModelOp (op 0, inputs ['x'], outputs ['y'])"
    (reason,) = set(fallbacks(network))
    assert reason == "; ".join(
        f"layer '{name}' of {op} draws random numbers by 'RandomUniform', whose seed XLA ignores"
        for name in ("printing", "other")
    )
    assert len(texts) == 1
