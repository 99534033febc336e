"""The state that ops get, schedulers of ops and optimizers, and what a network tells of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression


@conforms
def test_the_state_that_ops_get(fw: Framework) -> Any:
    seen: list[Any] = []

    class Look(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            entries = ("mode", "warmup", "req_grad", "deferred", "eager")
            seen.append({key: state[key] for key in entries})
            return data + fw.cast(fw_epoch(state["epoch"]), "float32")

    def fw_epoch(epoch: Any) -> Any:
        return fw.tensor(np.array(epoch)) if fw.target == "torch" else epoch

    model = fw.build(make_layers(3, 2), None)
    network = fw.network(
        [Look("x", "y"), ModelOp(model, "y", "z"), UpdateOp(model, "loss", mode="eval")]
    )
    (batch,) = make_batches(1)
    results = [
        fw.step(network, batch, mode, epoch, warmup=warmup)
        for mode, epoch, warmup in (("train", 1, False), ("train", 5, False), ("test", 2, True))
    ]
    for result, epoch in zip(results, (1, 5, 2), strict=True):
        np.testing.assert_allclose(result["y"], batch["x"] + epoch)
    assert seen[0] == {
        "mode": "train",
        "warmup": False,
        "req_grad": False,
        "deferred": {},
        "eager": fw.eager,
    }
    assert (seen[-1]["mode"], seen[-1]["warmup"]) == ("test", True)
    return results


def test_losses_and_scheduled_items(fw: Framework) -> None:
    one = fw.build(make_layers(3, 2), fw.sgd(0.1), name="one")
    other = fw.build(make_layers(2, 2), None, name="two")
    ops = [ModelOp(one, "x", "y"), ModelOp(other, "y", "z"), UpdateOp(one, "a")]
    pop, slicer = NumpyOp("y", "y", mode="eval"), AxisSlicer(0, slice="x", unslice=["y", "z"])
    network = fw.network(ops, [pop], [slicer])
    assert network.get_scheduled_items("train") == [*ops, one.optimizer, None, pop, slicer]
    assert network.get_scheduled_items("infer") == [*ops, pop, slicer]
    assert network.models == [one, other]
    assert network.target_type == fw.target
    updates = RepeatScheduler([UpdateOp(one, "b"), UpdateOp(other, "c")])
    scheduled = fw.network([EpochScheduler({1: Fuse(ops[-1:]), 2: None}), updates])
    assert scheduled.get_loss_keys() == {"a", "b", "c"}


X = np.ones((2, 3), dtype="float32")


def add(value: float, key: str = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + value, key, key, **rest)


@conforms
def test_ops_by_epoch(fw: Framework) -> Any:
    network = fw.network(
        [
            EpochScheduler({2: add(1), 4: None, 5: add(10)}),
            RepeatScheduler([None, add(100), add(1000)]),
            add(10000),
        ]
    )
    results = [fw.step(network, {"x": X}, "train", epoch) for epoch in (1, 2, 3, 4, 5, 6, 2)]
    sums = [result["x"][0, 0] - 1 for result in results]
    assert sums == [10000, 10101, 11001, 10000, 10110, 11010, 10101]
    return results


@pytest.mark.parametrize("kind", ["epochs", "repeat"])
@conforms
def test_rates_of_scheduled_optimizers(fw: Framework, kind: str) -> Any:
    layers = make_layers(3, 2)
    fast, slow = fw.sgd(0.5), fw.sgd(0.125)
    schedules = {
        "epochs": EpochScheduler({1: fast, 3: slow}),
        "repeat": RepeatScheduler([fast, slow]),
    }
    model = fw.build(layers, schedules[kind])
    rates = [fw.rate(model)]
    network = fw.network(regression(model))
    line = Line(*layers[0])
    weights = []
    for epoch in (1, 2, 3, 4):
        batches = make_batches(2, seed=epoch)
        results = fw.steps(network, batches, "train", epoch)
        rates.append(fw.rate(model))
        losses = [line.train(batch, rates[-1]) for batch in batches]
        assert_same([result["loss"] for result in results], losses)
        assert_same(fw.weights(model), line.weights)
        weights.append(fw.weights(model))
    expected = [0.5] * 3 + [0.125] * 2 if kind == "epochs" else [0.5] + [0.5, 0.125] * 2
    assert rates == expected
    return rates, weights
