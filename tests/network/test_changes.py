"""Ops that change between contexts, beside networks of new ops and hand-written loops."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.network.plan_cache import MAX_PLANS
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, Normalize, TensorOp
from fastnet.op.tensorop.meta import Fuse, Repeat
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, Scheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import built, line, run, same_weights, sgd, twins

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
    def test_not_while_the_network_is_open(self) -> None:
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


def test_an_invalid_setting_is_an_error_until_it_is_corrected() -> None:
    op = Normalize("y", "z", mean=0.0, std=1.0, max_pixel_value=2.0)
    network = TorchNetwork([plus(0.0), op])
    op.std = "x"
    for _ in range(2):
        with pytest.raises(ValueError, match="Normalize's std") as caught:
            run(network, {"x": torch.ones(1, 1, 2, 2)})
        assert any("Normalize (op 1" in note for note in caught.value.__notes__)
    op.std = 1.0
    result = run(network, {"x": torch.ones(1, 1, 2, 2)})
    assert torch.allclose(result["z"], torch.full((1, 1, 2, 2), 0.5))


class Noting(TensorOp):
    built: tuple[Any, ...] = ()

    def build(self, framework: str, device: Any = None) -> None:
        self.built += (framework, device)


def test_each_op_is_built_once() -> None:
    """When the network is made, or entered with new ops."""
    ops = [Noting("x", "y") for _ in range(4)]
    network = TorchNetwork([ops[0], EpochScheduler({1: ops[1], 9: ops[2], 10: None})])
    for epoch in (1, 9, 10):
        run(network, {"x": 1}, epoch=epoch)
    assert [op.built for op in ops] == [("torch", network.device)] * 3 + [()]
    new = [Noting("y", "z"), Noting("z", "w"), Noting("w", "v")]
    network.ops += [new[0], Fuse([new[1]]), EpochScheduler({1: new[2]})]
    for _ in range(2):
        assert run(network, {"x": 1})["v"] == 1
    assert [op.built for op in new] == [("torch", network.device)] * 3


def test_models_of_all_epochs_are_in_the_order_of_the_ops() -> None:
    models = [built(line, None) for _ in range(4)]
    ops = [ModelOp(model, "x", "y") for model in models]
    network = TorchNetwork([ops[2], EpochScheduler({1: ops[0], 5: ops[3]}), ops[2], ops[1]])
    assert network.models == [models[place] for place in (2, 0, 3, 1)]
    with network(mode="infer", epoch=1):
        assert network.ctx_models == {models[place] for place in (2, 0, 1)}


def test_a_network_s_lists() -> None:
    network = TorchNetwork([plus(1)])
    run(network, {"x": 1})
    network.ops.append(plus(10, "y", "z"))
    assert run(network, {"x": 1}) == {"x": 1, "y": 2, "z": 12}
    network.ops[0] = plus(5)
    network.ops.append(None)
    assert run(network, {"x": 1}) == {"x": 1, "y": 6, "z": 16}
    network.postprocessing.append(NumpyLambdaOp(lambda z: z * 2, "z", "z"))
    assert run(network, {"x": 1})["z"] == 32
    network.slicers.append(AxisSlicer(axis=0, slice="x", unslice=["x", "y", "z"]))
    result = run(network, {"x": torch.tensor([1, 2])})
    assert torch.equal(result["z"], torch.tensor([32, 34]))
    network.ops.clear()
    network.postprocessing.clear()
    network.slicers.clear()
    assert run(network, {"x": 1}) == {"x": 1}
    network.ops = (EpochScheduler({1: plus(2)}),)  # type: ignore[assignment]
    network.postprocessing = [NumpyLambdaOp(lambda y: y * 2, "y", "z")]
    network.slicers = [AxisSlicer(axis=0, slice="x", unslice=["x", "y", "z"])]
    assert run(network, {"x": torch.tensor([1, 2])})["z"].tolist() == [6, 8]


def test_a_scheduler_that_the_program_changes() -> None:
    values = {1: plus(1)}
    network = TorchNetwork([EpochScheduler(values)])
    assert run(network, {"x": 1})["y"] == 2
    values[1] = plus(2)
    assert run(network, {"x": 1})["y"] == 3


def test_changed_scheduler_beside_an_op_with_other_keys() -> None:
    values = {1: plus(1), 3: plus(3)}
    other = LambdaOp(lambda x: 10 * x, "x", "z")
    network = TorchNetwork([EpochScheduler(values), other])
    assert run(network, {"x": 1})["y"] == 2
    values[1] = values[3]
    other.outputs = ["w"]
    assert run(network, {"x": 1}) == {"x": 1, "y": 4, "w": 10}
    assert run(network, {"x": 1}) == {"x": 1, "y": 4, "w": 10}


def test_plans_for_ever_new_desired_keys_are_not_kept() -> None:
    class Key(str):
        """A string that can be referenced weakly."""

    network = TorchNetwork([plus(1)])
    kept: weakref.WeakSet[Key] = weakref.WeakSet()
    for number in range(3 * MAX_PLANS):
        key = Key(f"key {number}")
        kept.add(key)
        assert run(network, {"x": 1}, desired_output_keys={"y", key})["y"] == 2
    assert len(kept) <= MAX_PLANS


class Ever(Scheduler[Any]):
    """Makes a new item in every epoch, and remembers them weakly."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.made: list[weakref.ref[Any]] = []

    def get_current_value(self, epoch: int) -> Any:
        item = self.make(epoch)
        self.made.append(weakref.ref(item))
        return item

    def get_all_values(self) -> list[Any]:
        return []

    def alive(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self.made)


@pytest.mark.parametrize("place", ["ops", "postprocessing", "slicers"])
def test_items_that_are_made_anew_in_every_epoch_are_not_kept(place: str) -> None:
    make = {
        "ops": lambda epoch: plus(epoch),
        "postprocessing": lambda epoch: NumpyLambdaOp(lambda x: x + epoch, "x", "y"),
        "slicers": lambda epoch: AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
    }[place]
    ever = Ever(make)
    items: dict[str, Any] = {"ops": [plus(0, "x", "z")], place: [ever]}
    network = TorchNetwork(**items)
    epochs = 3 * MAX_PLANS
    for epoch in range(1, epochs + 1):
        keys = {"y"} if place != "slicers" else {"x"}
        result = run(network, {"x": torch.zeros(2)}, epoch=epoch, desired_output_keys=keys)
        assert place == "slicers" or torch.equal(result["y"], torch.full((2,), float(epoch)))
    assert len(ever.made) >= epochs
    assert ever.alive() <= MAX_PLANS


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
