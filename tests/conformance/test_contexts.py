"""What an opened network shows of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.conformance.agreement import conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import make_batches


class Program:
    """A network with some of everything, which knows the places of its parts."""

    def __init__(self, fw: Framework) -> None:
        self.fw = fw
        self.model = fw.build(make_layers(3, 2, seed=1), fw.sgd(0.1), name="one")
        self.other = fw.build(make_layers(2, 2, seed=2), None, name="two")
        self.ops = [
            ModelOp(self.model, "x", "y"),
            ModelOp(self.other, "y", "z", mode="infer"),
            MeanSquaredError(("y", "t"), "loss"),
            UpdateOp(self.model, "loss"),
            Delete("y", mode="test"),
            LambdaOp(lambda y: y + 1, "y", ["w"], mode="!test", ds_id="a"),
        ]
        self.pops = [
            NumpyLambdaOp(lambda y, v: y + v, ["y", "v"], "u", mode="infer"),
            NumpyLambdaOp(lambda q: q, "q", "q", mode="eval", ds_id="!a"),
        ]
        self.slicers = [
            AxisSlicer(0, slice=["x", "t"], unslice=["y", "w"], mode="eval"),
            MeanUnslicer("loss", mode="eval"),
        ]
        self.network = fw.network(self.ops, self.pops, self.slicers)

    def shown(self) -> dict[str, Any]:
        """List what the network shows, with places for items and names for models."""
        network = self.network
        state = dict(network.ctx_state)
        assert state.pop("eager") is self.fw.eager
        state.pop("tape", None)
        return {
            "inputs": network.ctx_inputs,
            "gpu_inputs": network.ctx_gpu_inputs,
            "outputs": network.ctx_outputs,
            "ops": [self.ops.index(op) for op in network.ctx_ops],
            "postprocessing": [self.pops.index(op) for op in network.ctx_postprocessing],
            "slicers": [self.slicers.index(one) for one in network.ctx_slicers],
            "models": {model.model_name for model in network.ctx_models},
            "state": {**state, "epoch": int(state["epoch"])},
        }


class TestOpened:
    @conforms
    def test_in_words(self, fw: Framework) -> Any:
        program = Program(fw)
        with fw.opened(program.network, "infer", ds_id="a"):
            shown = program.shown()
        del shown["state"]
        assert shown == {
            "inputs": {"x", "v"},
            "gpu_inputs": {"x"},
            "outputs": {"y", "z", "w", "u"},
            "ops": [0, 1, 5],
            "postprocessing": [0],
            "slicers": [],
            "models": {"one", "two"},
        }
        return shown

    @conforms
    def test_nothing_afterwards(self, fw: Framework) -> Any:
        program = Program(fw)
        (batch,) = make_batches(1)
        results = [fw.step(program.network, batch, "train", 2)]
        network = program.network
        assert not any(
            (
                network.ctx_inputs,
                network.ctx_gpu_inputs,
                network.ctx_outputs,
                network.ctx_ops,
                network.ctx_postprocessing,
                network.ctx_slicers,
                network.ctx_models,
                network.ctx_state,
            )
        )
        return results

    @conforms
    def test_the_state_that_ops_get(self, fw: Framework) -> Any:
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

    @conforms
    def test_losses_and_scheduled_items(self, fw: Framework) -> Any:
        program = Program(fw)
        network = program.network
        everything = [*program.ops, program.model.optimizer, None, *program.pops, *program.slicers]
        assert network.get_scheduled_items("train") == everything
        others = [*program.ops, *program.pops, *program.slicers]
        for mode in ("eval", "test", "infer"):
            assert network.get_scheduled_items(mode) == others
        assert network.models == [program.model, program.other]
        assert network.target_type == fw.target
        scheduled = fw.network(
            [
                EpochScheduler({1: UpdateOp(program.model, "a"), 2: None}),
                RepeatScheduler([UpdateOp(program.model, "b"), UpdateOp(program.other, "c")]),
            ]
        )
        assert scheduled.get_loss_keys() == {"a", "b", "c"}
        return network.get_loss_keys(), set(program.model.loss_name)
