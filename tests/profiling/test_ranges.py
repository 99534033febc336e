"""Ops named in the profiles of torch and to NVTX."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.programs import batches, built, mlp, supervised

X = {"x": torch.ones(4, 2)}


def ranges(profiler: Any) -> dict[str, int]:
    """Count the ranges that are none of torch's own operators."""
    return {each.key: each.count for each in profiler.key_averages() if "(" in each.key}


def chain(**kwargs: Any) -> TorchNetwork:
    ops = [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: [y, y], "y", ["a", "b"])]
    return TorchNetwork(ops, **kwargs)


NAMES = {"LambdaOp(x) -> y": 3, "LambdaOp(y) -> a, b": 3}


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
