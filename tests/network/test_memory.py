"""No reference is lost and none is kept, over many steps and many contexts."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.programs import batches, built, line, mlp, run, supervised

resource = pytest.importorskip("resource")

# what a run of many steps may be off by, for caches of the interpreter's own; one step that kept
# a single object would add as many blocks as there are steps
SLACK = 200


def resident() -> int:
    """The most memory that the process ever had, in bytes."""
    most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class Steady:
    """Runs something often, and sees that nothing adds up."""

    def __init__(self, step: Callable[[], Any], watched: list[Any]) -> None:
        self.step = step
        self.watched = watched

    def many(self, times: int, most_bytes: int = 24 << 20) -> None:
        self._repeat(max(times // 50, 20))  # caches fill
        before, memory = self._census(), resident()
        self._repeat(times)
        after = self._census()
        assert after[0] - before[0] < SLACK, "blocks of memory"
        assert after[1] - before[1] < SLACK, "objects that the collector tracks"
        assert after[2] == before[2], "references to the objects watched"
        assert resident() - memory < most_bytes, "bytes"

    def _repeat(self, times: int) -> None:
        step = self.step
        for _ in range(times):
            step()

    def _census(self) -> tuple[int, int, list[int]]:
        gc.collect()
        references = [sys.getrefcount(item) for item in self.watched]
        return sys.getallocatedblocks(), len(gc.get_objects()), references


class TestSteps:
    def test_of_a_network_of_ops(self) -> None:
        class Own(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return data[0], [data[1]], "new"

        ops = [
            LambdaOp(lambda x: x, "x", "y"),
            Own(["x", "y"], ["y", "nest", "word"]),
            LambdaOp(lambda y, nest: [y, (y, nest)], ["y", "nest"], ["z", "pair"]),
            Delete("word"),
            TensorOp("z", "x"),
        ]
        network = TorchNetwork(ops)
        batch = {"x": torch.zeros(4096), "other": object()}  # 16 KB a step would make 48 MB
        with network(mode="infer", epoch=1, desired_output_keys={"x", "pair"}):
            watched = [*ops, *batch.values(), batch, network, network.ctx_state, None]
            Steady(lambda: network.run_step(batch), watched[:-1]).many(3_000)

    @pytest.mark.parametrize(
        ("update", "precision"),
        [({}, False), ({"merge_grad": 2}, True), ({"defer": True}, False)],
        ids=["plain", "merged", "deferred"],
    )
    def test_training(self, update: dict[str, Any], precision: bool) -> None:
        model = built(mlp, "adam", mixed_precision=precision)
        network = TorchNetwork([*supervised(model, **update), LambdaOp(lambda y: y, "y", "z")])
        (batch,) = batches(1)
        with network(mode="train", epoch=1):
            watched = [*network.ops, model, *model.parameters(), batch, *batch.values()]
            Steady(lambda: network.run_step(batch), watched).many(500)


class TestContexts:
    def test_many_entries(self) -> None:
        model = built(line, RepeatScheduler(["sgd", "adam"]))
        network = TorchNetwork(
            [
                ModelOp(model, "x", "y"),
                EpochScheduler({1: LambdaOp(lambda y: y.mean(), "y", "loss")}),
                RepeatScheduler([UpdateOp(model, "loss"), None, UpdateOp(model, "loss")]),
            ],
            NumpyLambdaOp(lambda y: y, "y", "z", mode="eval"),
        )
        epochs = iter(range(1, 1_000_000))

        def step() -> None:
            epoch = next(epochs)
            with network(mode=("train", "eval")[epoch % 2], epoch=epoch):
                pass
            network(mode="test", epoch=epoch)  # and one that is never entered

        watched = [model, network, *network.ops, *network.postprocessing]
        Steady(step, watched).many(1_000)

    def test_a_network_goes_when_nobody_holds_it(self) -> None:
        model = built(mlp, "sgd")
        network = TorchNetwork(supervised(model))
        (batch,) = batches(1)
        for mode in ("train", "eval"):
            run(network, batch, mode)
        watched = [weakref.ref(item) for item in (network, *network.ops, model)]
        del network, model
        gc.collect()
        assert [reference() for reference in watched] == [None] * 5


def test_the_graph_goes_with_the_last_update() -> None:
    model = built(mlp, "sgd")
    network = TorchNetwork(supervised(model))
    (batch,) = batches(1)
    watched: list[weakref.ref[Any]] = []

    class Look(TensorOp):
        def forward(self, data: Any, state: Any) -> None:
            watched.append(weakref.ref(data))

    network.ops.insert(1, Look("y"))
    with network(mode="train", epoch=1, desired_output_keys={"loss"}):
        network.run_step(batch)
        assert watched[0]() is None
