"""Ops that change between openings, beside networks of new ops and loops by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, Normalize, TensorOp
from fastnet.op.tensorop.meta import Fuse, Repeat
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import built, run, same_weights, sgd, twins

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])


def plus(number: float, inputs: str = "x", outputs: str = "y", **kwargs: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + number, inputs, outputs, **kwargs)


def tripled(self: Any, data: Any, state: Any) -> Any:
    return (data[0] if isinstance(data, list) else data) * 3


class TestForwards:
    def test_set_on_an_op(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        assert run(network, {"x": 1})["y"] == 2
        op.forward = lambda data, state: 7  # type: ignore[method-assign]
        assert run(network, {"x": 1})["y"] == 7
        del op.forward
        assert run(network, {"x": 1})["y"] == 2

    @pytest.mark.parametrize(
        "make",
        [lambda: plus(1), lambda: Fuse([Repeat(plus(1, "x", "y"), 1)]), lambda: Foreign()],
    )
    def test_a_patched_class(self, make: Callable[[], Any]) -> None:
        op = make()
        network = TorchNetwork([op])
        assert run(network, {"x": 1})["y"] == 2
        with mock.patch.object(Foreign if type(op) is Foreign else LambdaOp, "forward", tripled):
            assert run(network, {"x": 1})["y"] == 3
        assert run(network, {"x": 1})["y"] == 2


class TestModels:
    def test_another_one(self) -> None:
        first, second = (
            built(model, sgd(), model_name=name)
            for model, name in zip(twins(lambda: nn.Linear(2, 1)), "ab", strict=True)
        )
        model_op, update = ModelOp(first, "x", "y"), UpdateOp(first, "loss")
        network = TorchNetwork([model_op, LambdaOp(lambda y: (y * y).mean(), "y", "loss"), update])
        run(network, {"x": X}, "train")
        model_op.model = update.model = second
        assert network.models == [first]  # until it is opened
        run(network, {"x": X}, "train")
        assert network.models == [second]
        # each was trained by one step, from the same weights
        assert same_weights(first, second)

    def test_hooks_of_layers(self) -> None:
        model = built(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), None)
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers="0")
        network = TorchNetwork([op])
        op.intermediate_layers, op.outputs = ["0", "absent"], ["y", "h", "k"]
        for _ in range(3):
            with pytest.raises(KeyError, match="absent"):
                run(network, {"x": X})
        assert [len(layer._forward_hooks) for layer in model] == [1, 0]
        op.intermediate_layers, op.outputs = ["1"], ["y", "h"]
        result = run(network, {"x": X})
        assert torch.equal(result["h"], result["y"])
        assert [len(layer._forward_hooks) for layer in model] == [0, 1]


def test_lists_and_sets_that_ops_hold() -> None:
    op = LambdaOp(lambda *x: sum(x), ["x"], "y")
    network = TorchNetwork([op])
    assert run(network, {"x": 1, "z": 5})["y"] == 1
    op.inputs.append("z")
    assert run(network, {"x": 1, "z": 5})["y"] == 6
    op.outputs[0] = "w"
    assert run(network, {"x": 1, "z": 5}) == {"x": 1, "z": 5, "w": 6}
    op.mode.add("train")
    assert run(network, {"x": 1, "z": 5}) == {"x": 1, "z": 5}


class Foreign:
    """An op of nobody's classes, as FastEstimator's own are."""

    def __init__(self) -> None:
        self.inputs, self.outputs = ["x"], ["y"]
        self.mode: set[str] = set()
        self.ds_id: set[str] = set()
        self.in_list = self.out_list = False

    def forward(self, data: Any, state: Any) -> Any:
        return data + 1


class TestWhenItCounts:
    def test_not_in_the_opening_that_there_is(self) -> None:
        op = plus(1)
        network = TorchNetwork([op])
        with network(mode="infer", epoch=1):
            op.outputs = ["z"]
            op.forward = lambda data, state: 0  # type: ignore[method-assign]
            network.ops.append(plus(1, "x", "w"))
            network.retrace()
            assert network.run_step({"x": 1}) == {"x": 1, "y": 2}
            assert network.ctx_outputs == {"y"}
        assert run(network, {"x": 1}) == {"x": 1, "z": 0, "w": 2}

    def test_what_is_no_concern_of_the_network_changes_no_layout(self) -> None:
        class Counting(TensorOp):
            count = 0

            def forward(self, data: Any, state: Any) -> Any:
                self.count += 1
                return data

        op = Counting("x", "y")
        network = TorchNetwork([op])
        run(network, {"x": 1})
        known = network._plans.built
        for _ in range(3):
            run(network, {"x": 1})
        assert op.count == 4
        assert network._plans.built == known

    def test_a_wrong_value_is_refused_until_it_is_mended(self) -> None:
        op = Normalize("x", "y", mean=0.0, std=1.0, max_pixel_value=1.0)
        network = TorchNetwork([op])
        op.max_pixel_value = -1
        for _ in range(2):
            with pytest.raises(ValueError, match="max_pixel_value must be positive, not -1"):
                run(network, {"x": torch.ones(1, 1, 2, 2)})
        op.max_pixel_value = 2.0
        result = run(network, {"x": torch.ones(1, 1, 2, 2)})
        assert torch.allclose(result["y"], torch.full((1, 1, 2, 2), 0.5))


def test_new_ops_are_built() -> None:
    class Built(TensorOp):
        built: tuple[Any, ...] = ()

        def build(self, framework: str, device: Any = None) -> None:
            self.built += (framework,)

    network = TorchNetwork([plus(1)])
    new = [Built("y", "z"), Built("z", "w"), Built("w", "v")]
    network.ops += [new[0], Fuse([new[1]]), EpochScheduler({1: new[2]})]
    for _ in range(2):
        assert run(network, {"x": 1})["v"] == 2
    assert [op.built for op in new] == [("torch",)] * 3


def test_slicers() -> None:
    slicer = AxisSlicer(axis=0, slice="x", unslice=["y"])
    network = TorchNetwork([plus(1), plus(2, "x", "z")], slicers=slicer)
    batch = {"x": torch.arange(3)}
    assert run(network, batch, desired_output_keys=["y"])["y"].tolist() == [1, 2, 3]
    slicer.unslice_inputs.append("z")
    assert run(network, batch)["z"].tolist() == [2, 3, 4]
    slicer.mode = {"train"}
    assert run(network, batch)["z"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_of_a_shared_op_that_is_taken_back(wrapped: bool) -> None:
    op = Normalize("x", "y", 0.0, 1.0, 1.0)
    one = TorchNetwork([Fuse([op]) if wrapped else op])
    other = copy.copy(one)
    images = torch.ones(1, 1, 2, 2)
    for network in (one, other):
        assert torch.allclose(run(network, {"x": images})["y"], images)
    op.mean = 0.5
    assert torch.allclose(run(one, {"x": images})["y"], images - 0.5)
    op.mean = 0.0
    assert torch.allclose(run(other, {"x": images})["y"], images)
    assert torch.allclose(run(one, {"x": images})["y"], images)
