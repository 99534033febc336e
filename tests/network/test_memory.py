"""No reference is lost and none is kept, over many steps and many openings."""

from __future__ import annotations

import contextlib
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
from fastnet.slicer import AxisSlicer
from tests.network.programs import Image, batches, built, line, mlp, run, supervised

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
    def test_a_hundred_thousand_of_a_network_of_ops(self) -> None:
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
        batch = {"x": torch.zeros(1024), "other": object()}  # 4 KB a step would make 400 MB
        with network(mode="infer", epoch=1, desired_output_keys={"x", "pair"}):
            watched = [*ops, *batch.values(), batch, network, network.ctx_state, None]
            Steady(lambda: network.run_step(batch), watched[:-1]).many(100_000)

    def test_new_tensors(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x + 1, f"k{n}", f"k{n + 1}") for n in range(5)])
        batch = {"k0": torch.zeros(4096)}
        with network(mode="infer", epoch=1):
            Steady(lambda: network.run_step(batch), [*network.ops, batch]).many(20_000)

    def test_failing_steps(self) -> None:
        error = ValueError("as told")

        def fail(x: Any) -> Any:
            raise error

        network = TorchNetwork([LambdaOp(lambda x: x, "x", "y"), LambdaOp(fail, "y", "z")])
        missing = {"w": 1}
        batch = {"x": torch.zeros(1024)}

        def step() -> None:
            for each in (batch, missing):
                with contextlib.suppress(ValueError, KeyError):
                    network.run_step(each)
            error.__traceback__ = None

        with network(mode="infer", epoch=1):
            Steady(step, [*network.ops, batch, missing, batch["x"]]).many(20_000)

    def test_slices_and_postprocessing(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            NumpyLambdaOp(lambda y: y + 1, "y", "z"),
            AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
        )
        batch = {"x": torch.zeros(2, 1024)}
        with network(mode="infer", epoch=1, desired_output_keys={"y", "z"}):
            watched = [*network.ops, *network.postprocessing, *network.slicers, batch, batch["x"]]
            Steady(lambda: network.run_step(batch), watched).many(2_000)

    @pytest.mark.parametrize(
        "update", [{}, {"merge_grad": 2}, {"defer": True}], ids=["plain", "merged", "deferred"]
    )
    @pytest.mark.parametrize("precision", [False, True])
    def test_training(self, update: dict[str, Any], precision: bool) -> None:
        model = built(mlp, "adam", mixed_precision=precision)
        network = TorchNetwork([*supervised(model, **update), LambdaOp(lambda y: y, "y", "z")])
        (batch,) = batches(1)
        with network(mode="train", epoch=1):
            watched = [*network.ops, model, *model.parameters(), batch, *batch.values()]
            Steady(lambda: network.run_step(batch), watched).many(800)

    def test_intermediate_layers(self) -> None:
        model = built(Image)
        network = TorchNetwork([ModelOp(model, "x", ["y", "h"], intermediate_layers="norm")])
        (batch,) = batches(1, (1, 8, 8))
        with network(mode="eval", epoch=1):
            Steady(lambda: network.run_step(batch), [model, model.norm, batch]).many(800)


class TestOpenings:
    def test_ten_thousand(self) -> None:
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
        Steady(step, watched).many(10_000)

    def test_that_fail(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=None, mode="train"),
        )

        def step() -> None:
            with contextlib.suppress(ValueError):
                network(mode="train", epoch=1)
            with contextlib.suppress(ValueError), network:
                network.run_step({})

        Steady(step, [network, *network.ops]).many(5_000)

    def test_new_networks(self) -> None:
        ops = supervised(built(mlp, "sgd"))
        (batch,) = batches(1)
        Steady(lambda: run(TorchNetwork(ops), batch, "eval"), ops).many(500)

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


class TestLiveValues:
    """A value that nobody reads again is gone before the next op has run."""

    class Census:
        def __init__(self) -> None:
            self.born: list[weakref.ref[torch.Tensor]] = []
            self.most = 0

        def grow(self, x: torch.Tensor) -> torch.Tensor:
            new = x + 1
            self.born.append(weakref.ref(new))
            self.most = max(self.most, self.alive())
            return new

        def alive(self) -> int:
            return sum(reference() is not None for reference in self.born)

    @pytest.mark.parametrize("wrapped", [str, lambda key: [key]])
    def test_two_of_a_chain_of_forty(self, wrapped: Any) -> None:
        census = self.Census()
        ops = [
            LambdaOp(
                census.grow if wrapped is str else lambda x: [census.grow(x)],
                wrapped(f"k{n}"),
                wrapped(f"k{n + 1}"),
            )
            for n in range(40)
        ]
        network = TorchNetwork(ops)
        for _ in range(3):
            result = run(network, {"k0": torch.zeros(4)}, desired_output_keys={"k40"})
            assert torch.equal(result["k40"], torch.full((4,), 40.0))
            assert census.most == 2
            assert census.alive() == 1
            del result

    def test_all_of_them_if_all_are_wanted(self) -> None:
        census = self.Census()
        network = TorchNetwork([LambdaOp(census.grow, f"k{n}", f"k{n + 1}") for n in range(10)])
        result = run(network, {"k0": torch.zeros(4)})
        assert census.most == 10
        del result
        assert census.alive() == 0

    def test_one_that_is_read_late_lives_as_long(self) -> None:
        census = self.Census()
        seen: list[int] = []

        def look(*values: Any) -> None:
            seen.append(census.alive())

        network = TorchNetwork(
            [
                LambdaOp(census.grow, "x", "a"),
                LambdaOp(census.grow, "a", "b"),
                LambdaOp(look, "b"),
                LambdaOp(look, ["a", "b"]),
                LambdaOp(look),
            ]
        )
        run(network, {"x": torch.zeros(1)}, desired_output_keys={"nothing"})
        assert seen == [2, 2, 0]

    def test_one_that_is_written_over(self) -> None:
        census = self.Census()
        seen: list[int] = []
        network = TorchNetwork(
            [
                LambdaOp(census.grow, "x", "x"),
                LambdaOp(census.grow, "x", "x"),
                LambdaOp(lambda: seen.append(census.alive())),
            ]
        )
        run(network, {"x": torch.zeros(1)})
        assert seen == [1]

    def test_one_that_is_deleted(self) -> None:
        census = self.Census()
        seen: list[int] = []
        network = TorchNetwork(
            [
                LambdaOp(census.grow, "x", "y"),
                Delete("y"),
                LambdaOp(lambda: seen.append(census.alive())),
            ]
        )
        run(network, {"x": torch.zeros(1)})
        assert seen == [0]

    def test_the_graph_goes_with_the_last_update(self) -> None:
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
