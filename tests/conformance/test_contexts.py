"""The state that ops get, and what a network tells of its losses and its scheduled items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer
from tests.conformance.agreement import conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import make_batches


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
