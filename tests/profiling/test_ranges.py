"""Ops named in the profiles of torch and to NVTX."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import fastnet
from fastnet.network import TorchNetwork
from fastnet.network.step import op_title
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import UpdateOp
from fastnet.slicer import AxisSlicer
from tests.network.programs import batches, built, mlp, supervised

X = {"x": torch.ones(4, 2)}


def ranges(profiler: Any) -> dict[str, int]:
    """Count the ranges that are none of torch's own operators."""
    return {each.key: each.count for each in profiler.key_averages() if "(" in each.key}


def chain(**kwargs: Any) -> TorchNetwork:
    ops = [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: [y, y], "y", ["a", "b"])]
    return TorchNetwork(ops, **kwargs)


NAMES = {"LambdaOp(x) -> y": 3, "LambdaOp(y) -> a, b": 3}


def test_titles() -> None:
    assert op_title(LambdaOp(max, ["x", "y"], "z")) == "LambdaOp[max](x, y) -> z"
    assert op_title(UpdateOp(built(mlp), "loss")) == "UpdateOp(loss)"
    assert op_title(object()) == "object()"


class TestTorchProfiler:
    def test_one_that_is_on_when_the_network_is_opened(self) -> None:
        network = chain()
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("infer", 1):
            for _ in range(3):
                result = network.run_step(X)
        assert ranges(profiler) == NAMES
        assert torch.equal(result["b"], X["x"] + 1)

    def test_operators_lie_within_their_op(self) -> None:
        network = TorchNetwork(supervised(built(mlp)))
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("train", 1):
            network.run_step(batches(1)[0])
        around: dict[str, set[str]] = {}
        for event in profiler.events():
            outer = event
            while outer.cpu_parent is not None:
                outer = outer.cpu_parent
            around.setdefault(event.name, set()).add(outer.name)
        assert around["aten::linear"] == {"ModelOp(x) -> y"}
        assert around["aten::cross_entropy_loss"] == {"CrossEntropy(y, t) -> loss"}
        (step,) = [name for name in around if name.startswith("Optimizer.step#")]
        assert around[step] == {"deferred updates"}

    def test_one_that_is_not_on_costs_nothing(self) -> None:
        network = chain()
        with network("infer", 1):
            assert network._context is not None
            assert network._context.bound is not None
            with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
                network.run_step(X)
        assert ranges(profiler) == {}

    def test_in_a_profile_one_may_come_and_go(self) -> None:
        network = chain()
        with fastnet.profile(network) as profile, network("infer", 1):
            network.run_step(X)
            with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
                for _ in range(3):
                    network.run_step(X)
            network.run_step(X)
        assert ranges(profiler) == NAMES
        (section,) = profile.sections
        assert section.steps == 5
        assert all(row.count == 5 for row in section.rows if row.kind == "op")

    @pytest.mark.parametrize("profiled", [False, True])
    def test_an_op_that_raises_ends_its_range(self, profiled: bool) -> None:
        def fail(x: Any) -> Any:
            if x.sum() > 8:
                raise ArithmeticError("too much")
            return x

        network = TorchNetwork([LambdaOp(fail, "x", "y"), LambdaOp(lambda y: y + 1, "y", "z")])
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("infer", 1):
            if profiled:
                with fastnet.profile(network):
                    run_both(network)
            else:
                run_both(network)
        assert ranges(profiler) == {"LambdaOp[fail](x) -> y": 2, "LambdaOp(y) -> z": 1}
        starts = [event for event in profiler.events() if event.name == "LambdaOp(y) -> z"]
        assert starts[0].cpu_parent is None

    def test_minibatches_and_autocast(self) -> None:
        network = chain(slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y", "a", "b"]))
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("infer", 1):
            network.run_step({"x": torch.ones(3)})
        assert ranges(profiler) == NAMES
        model = built(mlp, mixed_precision=True)
        network = TorchNetwork(supervised(model))
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("train", 1):
            result = network.run_step(batches(1)[0])
        assert "ModelOp(x) -> y" in ranges(profiler)
        assert result["y"].dtype is torch.bfloat16

    def test_a_step_beside_another_has_no_ranges(self) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def wait(x: Any) -> Any:
            if x.sum() > 8:
                inside.set()
                assert go_on.wait(300)
            return x

        network = TorchNetwork([LambdaOp(wait, "x", "y")])
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler, network("infer", 1):
            slow = {"x": torch.full((4, 2), 9.0)}
            thread = threading.Thread(target=network.run_step, args=(slow,))
            thread.start()
            assert inside.wait(300)
            assert torch.equal(network.run_step(X)["y"], X["x"])
            go_on.set()
            thread.join()
        assert ranges(profiler).get("LambdaOp[wait](x) -> y", 0) <= 1


def run_both(network: Any) -> None:
    with pytest.raises(ArithmeticError, match="too much"):
        network.run_step({"x": torch.full((4, 2), 9.0)})
    network.run_step(X)
