"""The older APIs: what their reference says of keys, and the results of FastEstimator 1.7.0."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tests.integrations import tf_sides
from tests.integrations.sides import Sides, assert_same, batches, mlp
from tests.integrations.tf_sides import MARKS

pytestmark = MARKS


@pytest.fixture(scope="module")
def v1() -> Any:
    from fastnet.compat import v1

    return v1


def test_signatures(v1: Any) -> None:
    """Those of the references, with what came later behind them."""
    expected = {
        "load_epoch": ["mode", "epoch", "ds_id", "output_keys", "warmup", "eager"],
        "unload_epoch": [],
        "run_step": ["batch"],
        "transform": ["data", "mode", "epoch", "ds_id"],
        "get_effective_input_keys": ["mode", "epoch", "ds_id"],
        "get_all_output_keys": ["mode", "epoch", "ds_id"],
        "get_loss_keys": [],
        "get_scheduled_items": ["mode"],
    }
    for network_class in (v1.TorchNetwork, v1.TFNetwork):
        for name, parameters in expected.items():
            there = list(inspect.signature(getattr(network_class, name)).parameters)[1:]
            assert there[: len(parameters)] == parameters
        assert list(inspect.signature(network_class).parameters)[:2] == ["ops", "postprocessing"]
    assert list(inspect.signature(v1.Network).parameters)[:2] == ["ops", "pops"]
    expected_of_build = [
        "model_fn",
        "optimizer_fn",
        "weights_path",
        "model_name",
        "mixed_precision",
    ]
    assert list(inspect.signature(v1.build).parameters)[:5] == expected_of_build


def of_epoch(network: Any, data: Any, *arguments: Any, **rest: Any) -> list[dict[str, Any]]:
    network.load_epoch(*arguments, **rest)
    results = []
    for batch in data:
        given, prediction = network.run_step(batch)
        assert given is batch
        results.append({**given, **prediction})
    network.unload_epoch()
    return results


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_training(sides: Sides, v1: Any, framework: str) -> None:
    """The same numbers as in FastEstimator 1.7.0, whichever way an epoch is entered."""
    tools = tf_sides if framework == "tf" else None
    make_model = tf_sides.mlp if tools else mlp
    made = (tf_sides.batches if tools else batches)(3)
    steps = tf_sides.steps

    def program(lib: Any, older: bool) -> Any:
        tf_sides.start_over()
        torch.manual_seed(0)
        source: Any = v1 if older else lib
        model = source.build(
            make_model, lib.schedule.EpochScheduler({1: "adam", 3: "sgd"}), model_name="mlp"
        )
        ops = lib.op.tensorop
        network = source.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                ops.loss.CrossEntropy(
                    ("y", "onehot"), "loss", form="categorical", from_logits=True
                ),
                ops.model.UpdateOp(model, "loss"),
            ],
            [lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "guess", mode="eval")],
        )
        if not older:
            told = [steps(network, made, "train", epoch) for epoch in (1, 2, 3)]
            told.append(steps(network, made, "eval", 3, wanted={"loss"}))
            told.append(steps(network, made, "infer", 3))
        else:
            told = [of_epoch(network, made, "train", 1), of_epoch(network, made, "train", 2, "")]
            told.append(of_epoch(network, made, "train", 3, warmup=False))
            told.append(of_epoch(network, made, "eval", 3, {"loss"}))
            told.append(of_epoch(network, made, "infer", 3, "", eager=True))
        return told, model

    compare = tf_sides.assert_same if tools else assert_same
    compare(program(sides.fastnet, True), program(sides.fastestimator, False), tf_sides.WEIGHTS)
