"""The losses on TensorFlow tensors that are no cross-entropies, and what goes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet import backend
from tests.backend.loss_oracles import CASES, DICE, IDS, data, dice_score, masks, slopes
from tests.network.keras_models import mlp
from tests.network.programs import raising

pytestmark = pytest.mark.tf

TYPES = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
EITHER_WAY = pytest.mark.parametrize("static", [True, False], ids=["static", "eager"])


def run(function: Any, pred: Any, dtype: str, static: bool) -> tuple[Any, Any, str]:
    """Return a loss, its slopes and its type."""
    kinds = []

    def step(tensor: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = function(tensor)
        kinds.append(loss.dtype.name)
        return tf.cast(loss, "float32"), tf.cast(tape.gradient(loss, tensor), "float32")

    if static:
        spec = tf.TensorSpec([None, *pred.shape[1:]], dtype)
        step = tf.function(step, input_signature=[spec], autograph=False)
    loss, slope = step(tf.cast(tf.constant(pred), dtype))
    return loss.numpy(), slope.numpy(), kinds[-1]


@EITHER_WAY
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("name", "oracle", "settings", "kind"), CASES, ids=IDS)
def test_values_and_slopes(
    name: str, oracle: Any, settings: Any, kind: str, dtype: str, static: bool
) -> None:
    true, pred = data(kind)
    truth = tf.cast(tf.constant(true), dtype)
    loss, slope, made = run(
        lambda tensor: getattr(backend, name)(truth, tensor, **settings), pred, dtype, static
    )
    assert made == dtype
    wanted = oracle(true, pred, **settings)
    assert loss.shape == wanted.shape
    near = TYPES[dtype]
    np.testing.assert_allclose(loss, wanted, rtol=near, atol=near)
    by_hand = slopes(lambda near: oracle(true, near, **settings), pred)
    np.testing.assert_allclose(slope, by_hand, rtol=near, atol=max(near, 1e-4))


@pytest.mark.parametrize(("name", "oracle", "settings", "kind"), CASES, ids=IDS)
def test_whole_truth(name: str, oracle: Any, settings: Any, kind: str) -> None:
    true, pred = data(kind)
    truth = tf.constant(true, "int64")
    loss, slope, _ = run(
        lambda tensor: getattr(backend, name)(truth, tensor, **settings), pred, "float32", False
    )
    wanted = oracle(true, pred, **settings)
    np.testing.assert_allclose(loss, wanted, rtol=2e-5, atol=2e-5)
    assert np.abs(slope).sum() > 0


@pytest.mark.parametrize("name", ["l1_loss", "huber"])
def test_losses_of_one_axis_stay(name: str) -> None:
    loss = getattr(backend, name)(tf.zeros(2), tf.constant([0.5, -2.0]))
    assert loss.numpy().tolist() == ([0.5, 2.0] if name == "l1_loss" else [0.125, 1.5])


@EITHER_WAY
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("settings", DICE, ids=lambda one: "-".join(one) or "plain")
def test_dice(settings: Any, dtype: str, static: bool) -> None:
    """Channels come last here."""
    pred, true = masks()
    truth = tf.constant(np.moveaxis(true, 1, -1))
    if "threshold" in settings:
        loss = backend.dice_score(
            tf.cast(tf.constant(np.moveaxis(pred, 1, -1)), dtype), truth, **settings
        )
        made, score = loss.dtype.name, tf.cast(loss, "float32").numpy()
    else:
        score, slope, made = run(
            lambda tensor: backend.dice_score(tensor, truth, **settings),
            np.moveaxis(pred, 1, -1),
            dtype,
            static,
        )
    assert made == dtype
    near = TYPES[dtype]
    np.testing.assert_allclose(score, dice_score(pred, true, **settings), rtol=near, atol=near / 10)
    if "threshold" not in settings:
        by_hand = slopes(lambda near: dice_score(near, true, **settings), pred)
        np.testing.assert_allclose(np.moveaxis(slope, -1, 1), by_hand, rtol=near, atol=near)


@EITHER_WAY
def test_l2_regularization(static: bool) -> None:
    model = mlp()
    model.layers[-1].trainable = False
    trained = model.trainable_variables
    assert len(trained) == 2

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = backend.l2_regularization(model, beta=0.5)
        return loss, tape.gradient(loss, trained)

    loss, slope = (tf.function(step) if static else step)()
    wanted = 0.5 * sum((one.numpy() ** 2).sum() / 2 for one in trained)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for one, each in zip(trained, slope, strict=True):
        np.testing.assert_allclose(each, 0.5 * one.numpy(), rtol=1e-6)
    np.testing.assert_allclose(backend.l2_regularization(model), wanted / 50, rtol=1e-5)
    model.trainable = False
    assert backend.l2_regularization(model) == 0


class TestWatch:
    def test_lets_gradients_be_taken(self) -> None:
        tensor = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            watched = backend.watch(tensor, tape)
            target = watched**2
        assert watched is tensor
        assert backend.get_gradient(target, watched, tape=tape).numpy().tolist() == [2.0, 4.0]

    def test_no_tape(self) -> None:
        with raising(
            ValueError,
            "Watching a TensorFlow tensor needs a tape, but got None. Pass state['tape'], which a "
            "network provides if any of its ops takes gradients.",
        ):
            backend.watch(tf.ones(2))
