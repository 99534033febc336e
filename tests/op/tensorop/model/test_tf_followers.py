"""Averages of Keras models, reports of updates that overflow, and what is for torch only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp
from tests.network.keras_models import (
    BY_NAME,
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
    weights,
)
from tests.network.tf_programs import EITHER_WAY

pytestmark = pytest.mark.tf


def sgd() -> Any:
    return BY_NAME.SGD(0.1)


@EITHER_WAY
@pytest.mark.parametrize("clip", [{"clip_norm": 0.1}, {"clip_value": 0.001}], ids=str)
def test_a_step_that_overflows_is_none(clip: Any, eager: bool) -> None:
    plain, _ = twins(mlp)
    reports: Any = {"stepped": "stepped", "grad_norm": "norm"}
    model = fastnet.build(mlp, sgd, mixed_precision=True)
    model.set_weights(plain.get_weights())
    ema = EMA(model, decay=0.9)
    network = TFNetwork([*supervised(model, outputs=reports, **clip), ema])
    (good,) = batches(1)
    bad = {**good, "x": good["x"] * 6e4}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(classify(plain(good["x"]), good))
    norm = tf.linalg.global_norm(tape.gradient(loss, plain.trainable_variables))
    (result,) = train(network, [good], eager)
    assert result["stepped"]
    # unscaled, and before it is clipped
    np.testing.assert_allclose(result["norm"], norm, rtol=1e-2)
    then, average = weights(model), weights(ema.averaged)
    (result,) = train(network, [bad], eager)
    assert not result["stepped"]
    assert same_weights(model, then)
    assert same_weights(ema.averaged, average)
    (result,) = train(network, [good], eager)
    assert result["stepped"]
    for own, before, now in zip(weights(ema.averaged), then, weights(model), strict=True):
        np.testing.assert_allclose(own, 0.9 * before + 0.1 * now, rtol=1e-5)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2's begins with the weights before the first step")
def test_an_average_is_what_keras_has() -> None:
    model, twin = twins(mlp)
    fastnet.build(lambda: model, sgd)
    ema = EMA(model, decay=0.9)
    train(TFNetwork([*supervised(model), ema]), batches(4))
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    loop(twin, optimizer, batches(4), classify)
    optimizer.finalize_variable_values(twin.trainable_variables)
    for own, wanted in zip(weights(ema.averaged), weights(twin), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_trained_are_copied_or_averaged() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Input((6,)), layers.BatchNormalization(), layers.Dense(3)])

    for use_buffers in (False, True):
        model = fastnet.build(make, sgd)
        ema = EMA(model, decay=0.5, use_buffers=use_buffers)
        network = TFNetwork([*supervised(model), ema])
        train(network, batches(1))
        before = [one.numpy() for one in model.non_trainable_weights]
        train(network, batches(1, seed=1))
        after = [one.numpy() for one in model.non_trainable_weights]
        means = [one.numpy() for one in ema.averaged.weights if "moving" in one.name]
        for mean, one, other in zip(means, before, after, strict=True):
            expected = (one + other) / 2 if use_buffers else other
            np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_what_is_for_torch_is_refused() -> None:
    model = fastnet.build(mlp, sgd, model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*`trainable = False`.*trainable=False"):
        ModelOp(model, "x", "y", eval_layers="dense")
    with pytest.raises(ValueError, match=r"LRSchedule.*'m'.*'tf'.*learning_rate"):
        LRSchedule(model, lambda optimizer: optimizer)
    network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
    with pytest.raises(TypeError, match="transform got device='cuda', which is for torch"):
        network.transform({"x": np.ones(1)}, "infer", device="cuda")


def test_a_model_without_weights_has_no_average() -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Dense(3)]), None, model_name="m")
    with pytest.raises(ValueError, match=r"'m'.*EMA.*build\(shape\)"):
        EMA(model)
