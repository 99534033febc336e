"""Small programs in TensorFlow, each beside the same written by hand; they agree to the bit."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet import Network, build, load_checkpoint, profile, save_checkpoint
from fastnet.backend import get_lr, load_model, save_model
from fastnet.backend.tf.setup import restart_names
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    KERAS_3,
    batches,
    classify,
    keras,
    layers,
    loop,
    mlp,
    same_weights,
    supervised,
    train,
    twins,
)


def run() -> None:
    """Run them all."""
    programs = (train_eagerly, train_frozen, trace, compile_by_xla, differentiate, keep, schedule)
    for program in (*programs, draw, name):
        program()


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def train_eagerly() -> None:
    """Op by op, and measured."""
    model, twin = twins(mlp)
    network = Network(supervised(build(lambda: model, adam)))
    train(network, batches(2), eager=True)
    with network(mode="train", epoch=2, eager=True), profile(network):
        for batch in batches(2):
            network.run_step(batch)
    loop(twin, adam(), batches(2) * 2, classify)
    assert same_weights(model, twin)


def train_frozen() -> None:
    """A layer that is frozen when the model is built, and thawed later."""
    model, twin = twins(mlp)
    for one in (model, twin):
        one.layers[0].trainable = False
    network = Network(supervised(build(lambda: model, adam)))
    optimizer = adam()
    optimizer.build(twin.weights)
    for frozen in (True, False):
        for one in (model, twin):
            one.layers[0].trainable = not frozen
        train(network, batches(2), eager=True)
        loop(twin, optimizer, batches(2), classify)
    assert same_weights(model, twin)


class Choose(TensorOp):
    """Has a condition that only AutoGraph can put into a graph, in a function that it calls."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return chosen(data)


def chosen(x: Any) -> Any:
    if tf.reduce_sum(x) > 0.0:
        y = x * 2.0
    else:
        y = x - 1.0
    return y


def trace() -> None:
    """A graph, with a value of several tensors, a condition, and steps of several sizes."""
    model, twin = twins(mlp)
    ops = [
        LambdaOp(lambda ragged: ragged.to_tensor(), "ragged", "dense"),
        Choose("dense", "chosen"),
        *supervised(build(lambda: model, adam)),
    ]
    network = Network(ops)
    optimizer = adam()

    @tf.function
    def by_hand(x: Any, t: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(classify(twin(x, training=True), {"t": t}))
        gradients = tape.gradient(loss, twin.trainable_variables)
        optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))

    ragged = [tf.ragged.constant([[1.0], [sign * 2.0, 3.0]]) for sign in (1, -4)]
    data = [*batches(2), *batches(1, size=5)]
    found = []
    with network(mode="train", epoch=1):
        for number, batch in enumerate(data):
            batch["ragged"] = ragged[number % 2]
            found.append(network.run_step(batch)["chosen"].numpy())
    for batch in data:
        by_hand(batch["x"], batch["t"])
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one, chosen(ragged[number % 2].to_tensor()).numpy())
    assert same_weights(model, twin)


def compile_by_xla() -> None:
    """A step that XLA compiles."""
    network = TFNetwork([LambdaOp(lambda x: x * 2.0, "x", "y")], compile=True)
    data = batches(3)
    for batch, found in zip(data, train(network, data), strict=True):
        np.testing.assert_array_equal(found["y"], batch["x"] * 2.0)
    assert [one.fallback for one in network.traces] == [None]


def differentiate() -> None:
    """Gradients by an input."""
    ops = [
        Watch("x"),
        LambdaOp(lambda x: tf.reduce_sum(tf.square(x)), inputs="x", outputs="y"),
        GradientOp(finals="y", outputs="g", inputs="x"),
    ]
    (batch,) = batches(1)
    for eager in (True, False):
        (found,) = train(Network(ops), [dict(batch)], eager=eager)
        with tf.GradientTape() as tape:
            tape.watch(batch["x"])
            total = tf.reduce_sum(tf.square(batch["x"]))
        assert np.array_equal(found["g"], tape.gradient(total, batch["x"]))


def keep() -> None:
    """Weights and the optimizer's state, through files, a checkpoint, and into a copy."""
    model, twin = twins(mlp)
    network = Network(supervised(build(lambda: model, adam, model_name="m")))
    train(network, batches(2), eager=True)
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(model, folder, "m", save_optimizer=True)
        again = build(mlp, adam, model_name="m")
        load_model(again, path, load_optimizer=True)
        saved = save_checkpoint(Path(folder) / "run", network)
        run = Network(supervised(build(mlp, adam, model_name="m")))
        load_checkpoint(saved, run)
    optimizer = adam()
    loop(twin, optimizer, batches(2) * 2, classify)
    for one in (Network(supervised(again)), run, copy.deepcopy(network)):
        train(one, batches(2), eager=True)
        assert same_weights(next(iter(one.models)), twin)


def schedule() -> None:
    """A learning rate that a schedule decides."""

    def decaying() -> Any:
        rates = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        return keras.optimizers.SGD(rates)

    model, twin = twins(mlp)
    network = Network(supervised(build(lambda: model, decaying)))
    train(network, batches(4), eager=True)
    loop(twin, decaying(), batches(4), classify)
    assert same_weights(model, twin)
    assert abs(get_lr(model) - 0.025) < 1e-6


def draw() -> None:
    """Random numbers of a layer, gone on from."""
    keras.utils.set_random_seed(1)
    make = lambda: keras.Sequential([layers.Input((6,)), layers.Dropout(0.5, seed=2)])  # noqa: E731
    model = build(make, None)
    network = Network([ModelOp(model, "x", "y")])
    with tempfile.TemporaryDirectory() as folder:
        saved = save_checkpoint(Path(folder) / "run", network)
        first = train(network, batches(2), eager=True)
        load_checkpoint(saved, network)
    for one, other in zip(first, train(network, batches(2), eager=True), strict=True):
        assert np.array_equal(one["y"], other["y"]) or not KERAS_3


def name() -> None:
    """Layers that are named anew, and asked for by name."""
    model = build(mlp, None)
    restart_names([model])
    wanted = model.layers[0].name
    network = Network([ModelOp(model, "x", ["y", "h"], intermediate_layers=wanted)])
    (batch,) = batches(1)
    (found,) = train(network, [batch], eager=True)
    assert np.array_equal(found["h"], model.layers[0](batch["x"]))
