"""The older APIs: what their reference says of keys, and the results of FastEstimator 1.7.0."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrations import graphs, tf_sides
from tests.integrations.graphs import Opening
from tests.integrations.sides import Sides, assert_same, batches, mlp
from tests.integrations.test_random_steps import make_op
from tests.integrations.tf_sides import MARKS

pytestmark = MARKS


@pytest.fixture(scope="module")
def v1() -> Any:
    from fastnet.compat import v1

    return v1


def needed(ops: list[Any]) -> set[str]:
    """List what ops read before one of them has written it."""
    inputs: set[str] = set()
    made: set[str] = set()
    for op in ops:
        inputs |= set(op.inputs) - made
        made |= set(op.outputs)
    return inputs


def written(ops: list[Any]) -> set[str]:
    return {key for op in ops for key in op.outputs}


def without_deletes(items: list[Any]) -> list[Any]:
    """Leave out what the older APIs count as readers of what they delete."""

    def is_delete(item: Any) -> bool:
        values = getattr(item, "values", item)
        if isinstance(values, dict):
            values = list(values.values())
        each = values if isinstance(values, list) else [values]
        return any(getattr(one, "kind", "") == "delete" for one in each)

    return [item for item in items if not is_delete(item)]


@settings(max_examples=100)
@given(graphs.ops, graphs.openings, st.integers(0, 3))
def test_keys_of_any_network(
    sides: Sides, v1: Any, ops: list[Any], opening: Opening, after: int
) -> None:
    """The definitions of the reference of 1.5, worked out with FastEstimator's own schedules."""
    fe = sides.fastestimator
    made, _ = graphs.built(fe, without_deletes(ops), lambda item: make_op(fe, item))
    pops = [fe.op.numpyop.NumpyOp(key, f"{key}{key}") for key in "abc"[:after]]
    network = v1.TorchNetwork(made, pops)
    arguments = opening.mode, opening.epoch, opening.ds_id
    in_force, pops_in_force = (
        fe.schedule.get_current_items(items, *arguments[:2], ds_id=arguments[2])
        for items in (made, pops)
    )
    both = [*in_force, *pops_in_force]
    assert network.get_effective_input_keys(*arguments) == needed(both)
    assert network.get_all_output_keys(*arguments) == written(both)
    network.load_epoch(*arguments, opening.wanted)
    assert network.epoch_ops == in_force
    assert network.epoch_postprocessing == pops_in_force
    assert network.effective_inputs == {opening.mode: needed(both)}
    outputs = written(both)
    if opening.wanted:
        outputs = outputs & opening.wanted | needed(pops_in_force)
    assert network.effective_outputs == {opening.mode: outputs}
    network.unload_epoch()


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
