"""Save Keras models and optimizers to files, and load them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import load_model, save_model
from fastnet.backend.tf.optimizers import load_optimizer_state, optimizer_state
from tests.network.keras_models import (
    KERAS_3,
    batches,
    keras,
    mlp,
    same_weights,
    supervised,
    train,
)

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore:You are saving your model as")]


def build(optimizer: Any = "adam", **settings: Any) -> Any:
    return fastnet.build(mlp, optimizer, model_name="net", **settings)


def steps(network: Any, data: Any, eager: bool = False) -> None:
    train(network, data, eager=eager)


class TestRoundTrip:
    def test_of_the_scale_of_a_loss(self, tmp_path: Path) -> None:
        model, other = (build("adam", mixed_precision=True) for _ in range(2))
        network = fastnet.Network(supervised(model))
        steps(network, batches(2))
        broken = {**batches(1)[0], "x": tf.fill((8, 6), float("inf"))}
        steps(network, [broken])  # it is halved

        def scale(one: Any) -> float:
            return float(
                one.current_optimizer.scale_loss(1.0)
                if KERAS_3
                else one.current_optimizer.loss_scale
            )

        assert scale(model) < scale(other)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert scale(other) == scale(model)


def test_the_architecture(tmp_path: Path) -> None:
    model = build()
    steps(fastnet.Network(supervised(model)), batches(3))
    path = save_model(model, tmp_path, save_optimizer=True, save_architecture=True)
    kept = tmp_path / ("net.keras" if KERAS_3 else "net")
    assert kept.is_file() if KERAS_3 else kept.is_dir()
    assert {*os.listdir(tmp_path)} == {os.path.basename(path), "net_opt.safetensors", kept.name}
    again = keras.models.load_model(kept)
    assert same_weights(model, again)
    np.testing.assert_array_equal(again(tf.ones((2, 6))), model(tf.ones((2, 6))))


@pytest.mark.parametrize("setting", ["learning_rate", "weight_decay"])
def test_settings_of_another_kind(setting: str) -> None:
    model = build()
    state = optimizer_state(model.current_optimizer)
    state[setting] = None if setting == "learning_rate" else 0.5
    with pytest.raises(ValueError, match=f"its {setting} is"):
        load_optimizer_state(model.current_optimizer, state, "it")
