"""Keras models made ready: attributes, optimizers, weights, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import (
    MARKS,
    agree,
    assert_same,
    mlp,
    momenta,
    start_over,
    tf,
)

pytestmark = MARKS

keras = tf.keras

OPTIMIZERS = ["adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd", None]


def attributes(model: Any) -> dict[str, Any]:
    optimizer = model.current_optimizer
    return {
        "name": model.model_name,
        "compiled": model.fe_compiled,
        "mixed": model.mixed_precision,
        "input": model.input_spec,
        "optimizer": type(optimizer),
        "same": model.optimizer is optimizer,
        "settings": None if optimizer is None else optimizer.get_config(),
        "memory": None if optimizer is None else momenta(model),
        "policy": [layer.dtype_policy.name for layer in model.layers],
    }


@pytest.mark.parametrize(
    ("optimizer", "mixed"),
    [
        *((name, False) for name in OPTIMIZERS),
        ("adam", True),
        (None, True),
        (lambda: keras.optimizers.Adam(0.1, beta_1=0.8), True),
    ],
)
def test_one_model(sides: Sides, optimizer: Any, mixed: bool) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, optimizer, model_name="mlp", mixed_precision=mixed)
        return attributes(model), model

    agree(sides, program)


def test_weights_that_either_has_saved(sides: Sides, tmp_path: Path) -> None:
    """FastEstimator's save_model writes what fastnet reads, of a model that fastnet has built."""
    start_over(seed=7)
    for lib in (sides.fastnet, sides.fastestimator):
        model = lib.build(mlp, "sgd", model_name="saved")
        sides.fastestimator.backend.save_model(model, str(tmp_path), "saved")
        path = str(tmp_path / "saved.h5")
        for reader in (sides.fastestimator, sides.fastnet):
            loaded = reader.build(mlp, "sgd", weights_path=path, model_name="loaded")
            assert_same(loaded, model)
    start_over()


def test_what_is_told_of_a_network(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="only")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                None,
                models.ModelOp(model, "a", "b"),
                lib.op.tensorop.LambdaOp(tf.reduce_sum, "b", "loss"),
                models.UpdateOp(model, "loss"),
            ]
        )
        before = {
            "ops": [type(op).__name__ for op in network.ops],
            "models": [model.model_name for model in network.models],
            "type": network.target_type,
            "device": network.device,
            "class": type(network).__name__,
            "is one": isinstance(network, lib.network.BaseNetwork),
            "losses": network.get_loss_keys(),
            "inputs": network.ctx_inputs,
        }
        with network("train", 2, "some", {"b"}, warmup=True, eager=True):
            state = dict(network.ctx_state)
            state.pop("_force_tf_retrace", None)  # FastEstimator's own
            within = {
                "inputs": network.ctx_inputs,
                "device inputs": network.ctx_gpu_inputs,
                "outputs": network.ctx_outputs,
                "ops": [type(op).__name__ for op in network.ctx_ops],
                "models": [model.model_name for model in network.ctx_models],
                "state": state,
            }
        return before, within, network.ctx_state, network.ctx_ops, network.ctx_models

    agree(sides, program)
