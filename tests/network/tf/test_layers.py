"""Layers of Keras train like in a loop with a GradientTape, in batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import tf

pytestmark = pytest.mark.tf

layers: Any = tf.keras.layers
SIZES = 4, 3, 1, 4
IMAGE, SEQUENCE, VECTOR = (6, 6, 2), (5, 3), (6,)


def residual(x: Any) -> Any:
    return layers.Add()([x, layers.Dense(6)(x)])


def two_branches(x: Any) -> Any:
    return layers.Concatenate()([layers.Dense(2)(x), layers.Dense(3, "tanh")(x)])


def attention(x: Any) -> Any:
    return layers.MultiHeadAttention(2, 3)(x, x)


def dot_attention(x: Any) -> Any:
    return layers.Attention(use_scale=True)([x, layers.Dense(3)(x)])


# What is called with the input, and the shape of a sample.
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Dense": (lambda: layers.Dense(3, "relu"), VECTOR),
    "EinsumDense": (lambda: layers.EinsumDense("ab,bc->ac", output_shape=3), VECTOR),
    "PReLU": (layers.PReLU, VECTOR),
    "LeakyReLU": (layers.LeakyReLU, VECTOR),
    "Rescaling": (lambda: layers.Rescaling(0.5, 1.0), VECTOR),
    "ActivityRegularization": (lambda: layers.ActivityRegularization(l2=0.1), VECTOR),
    "RepeatVector": (lambda: layers.RepeatVector(3), VECTOR),
    "Reshape": (lambda: layers.Reshape((2, 3)), VECTOR),
    "LayerNormalization": (layers.LayerNormalization, VECTOR),
    "UnitNormalization": (layers.UnitNormalization, VECTOR),
    "BatchNormalization": (layers.BatchNormalization, VECTOR),
    "SpectralNormalization": (lambda: layers.SpectralNormalization(layers.Dense(4)), VECTOR),
    "residual": (lambda: residual, VECTOR),
    "two branches": (lambda: two_branches, VECTOR),
    "Conv1D": (lambda: layers.Conv1D(2, 3, padding="causal"), SEQUENCE),
    "MaxPooling1D": (lambda: layers.MaxPooling1D(2), SEQUENCE),
    "TimeDistributed": (lambda: layers.TimeDistributed(layers.Dense(2)), SEQUENCE),
    "Permute": (lambda: layers.Permute((2, 1)), SEQUENCE),
    "SimpleRNN": (lambda: layers.SimpleRNN(4), SEQUENCE),
    "LSTM": (lambda: layers.LSTM(4, return_sequences=True), SEQUENCE),
    "GRU": (lambda: layers.GRU(4), SEQUENCE),
    "Bidirectional": (lambda: layers.Bidirectional(layers.LSTM(2)), SEQUENCE),
    "MultiHeadAttention": (lambda: attention, SEQUENCE),
    "Attention": (lambda: dot_attention, SEQUENCE),
    "Conv2D": (lambda: layers.Conv2D(3, 3, strides=2), IMAGE),
    "Conv2DTranspose": (lambda: layers.Conv2DTranspose(2, 3, strides=2), IMAGE),
    "DepthwiseConv2D": (lambda: layers.DepthwiseConv2D(3), IMAGE),
    "SeparableConv2D": (lambda: layers.SeparableConv2D(3, 3), IMAGE),
    "GroupNormalization": (lambda: layers.GroupNormalization(2), IMAGE),
    "AveragePooling2D": (lambda: layers.AveragePooling2D(2), IMAGE),
    "GlobalMaxPooling2D": (layers.GlobalMaxPooling2D, IMAGE),
    "UpSampling2D": (lambda: layers.UpSampling2D(2), IMAGE),
    "ZeroPadding2D": (layers.ZeroPadding2D, IMAGE),
    "Cropping2D": (layers.Cropping2D, IMAGE),
}


def make_model(name: str) -> Any:
    """Return a model that ends with the layer, flattened, and a dense one."""
    make, shape = LAYERS[name]
    given = layers.Input(shape)
    found = layers.Dense(2)(layers.Flatten()(make()(layers.Dense(shape[-1])(given))))
    return tf.keras.Model(given, found)


def make_batches(name: str) -> list[dict[str, Any]]:
    source = np.random.default_rng(0)
    shape = LAYERS[name][1]
    return [
        {
            "x": tf.constant(source.standard_normal((size, *shape)), tf.float32),
            "t": tf.constant(source.standard_normal((size, 2)), tf.float32),
        }
        for size in SIZES
    ]


def train_by_hand(model: Any, batches: list[dict[str, Any]]) -> list[float]:
    optimizer = tf.keras.optimizers.SGD(0.05)
    losses = []
    for batch in batches:
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.square(model(batch["x"], training=True) - batch["t"]))
            total = tf.add_n([error, *model.losses])
        gradients = tape.gradient(total, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(error))
    return losses


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_trains_as_by_hand_in_batches_of_any_size(name: str, compile: bool) -> None:
    tf.keras.utils.set_random_seed(0)
    batches, twin = make_batches(name), make_model(name)
    model = fastnet.build(lambda: make_model(name), lambda: tf.keras.optimizers.SGD(0.05))
    model.set_weights(twin.get_weights())
    ops = [ModelOp(model, "x", "y"), MeanSquaredError(("y", "t"), "loss")]
    network = TFNetwork([*ops, UpdateOp(model, "loss")], compile=compile)
    with network("train", 1):
        losses = [float(network.run_step(batch)["loss"]) for batch in batches]
    np.testing.assert_allclose(losses, train_by_hand(twin, batches), rtol=1e-4, atol=1e-6)
    for weights, expected in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-3, atol=1e-5)
    if compile:
        assert [record.fallback for record in network.traces] == [None] * len(network.traces)
