"""What a network works out when it is opened, and keeps."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.network.plan_cache import MAX_PLANS, ExecutionPlan
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import built, line, run


def plan_of(
    network: TorchNetwork, mode: str = "infer", epoch: int = 1, **opening: Any
) -> ExecutionPlan:
    """Look up what an opening runs."""
    with network(mode=mode, epoch=epoch, **opening):
        plan = network._plan()
    assert plan is not None
    return plan


def plus(number: float, inputs: str = "x", outputs: str = "y", **kwargs: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + number, inputs, outputs, **kwargs)


def test_plans_of_schedulers_are_found_again() -> None:
    network = TorchNetwork(
        [plus(1), EpochScheduler({2: plus(2, "y", "y"), 5: None})],
        slicers=RepeatScheduler([None, AxisSlicer(axis=0, slice="x", unslice=["x", "y"])]),
    )
    plans = [plan_of(network, epoch=epoch) for epoch in range(1, 9)]
    assert plans[1] is plans[3]  # epochs 2 and 4
    assert plans[0] is plans[4] is plans[6]  # 1, 5 and 7
    assert plans[5] is plans[7]  # 6 and 8
    assert len({id(plan) for plan in plans}) == 4  # and 3


class TestBounds:
    """Nothing that changes in every epoch makes the memory grow."""

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
    def test_of_items_that_are_made_anew(self, place: str) -> None:
        make = {
            "ops": lambda epoch: plus(epoch),
            "postprocessing": lambda epoch: NumpyLambdaOp(lambda x: x + epoch, "x", "y"),
            "slicers": lambda epoch: AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
        }[place]
        ever = self.Ever(make)
        items: dict[str, Any] = {"ops": [plus(0, "x", "z")], place: [ever]}
        network = TorchNetwork(**items)
        epochs = 3 * MAX_PLANS
        for epoch in range(1, epochs + 1):
            keys = {"y"} if place != "slicers" else {"x"}
            result = run(network, {"x": torch.zeros(2)}, epoch=epoch, desired_output_keys=keys)
            assert place == "slicers" or torch.equal(result["y"], torch.full((2,), float(epoch)))
        assert len(ever.made) >= epochs
        assert ever.alive() <= MAX_PLANS
        assert len(network._plans._items.plans) <= MAX_PLANS
        assert len(network._plans._items.specs) <= 2

    def test_of_ever_new_desired_keys_and_datasets(self) -> None:
        network = TorchNetwork([plus(1, ds_id="!a")])
        keys = len(network._plans._items.table)
        for number in range(3 * MAX_PLANS):
            desired = {"y", f"key {number}"}
            result = run(network, {"x": 1}, desired_output_keys=desired, ds_id=f"b{number}")
            assert result["y"] == 2
        assert len(network._plans._items.plans) <= MAX_PLANS
        assert len(network._plans._items.table) == keys

    def test_an_address_that_is_used_again_is_another_item(self) -> None:
        """A plan is found by the identity of scheduled items, so it must keep them alive."""
        ever = self.Ever(lambda epoch: plus(epoch, mode="train" if epoch % 2 else None))
        network = TorchNetwork([ever])
        for epoch in range(1, 500):
            result = run(network, {"x": 0}, epoch=epoch)
            assert result == ({"x": 0} if epoch % 2 else {"x": 0, "y": epoch})


class TestChanges:
    def test_a_network_s_lists(self) -> None:
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

    def test_a_scheduler_that_the_program_changes(self) -> None:
        values = {1: plus(1)}
        network = TorchNetwork([EpochScheduler(values)])
        assert run(network, {"x": 1})["y"] == 2
        values[1] = plus(2)
        assert run(network, {"x": 1})["y"] == 3


class TestBuilding:
    class Noting(TensorOp):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.built: list[Any] = []

        def build(self, framework: str, device: Any = None) -> None:
            self.built.append((framework, device))

    def test_each_op_once_when_the_network_is_made(self) -> None:
        ops = [self.Noting("x", "y") for _ in range(4)]
        network = TorchNetwork([ops[0], EpochScheduler({1: ops[1], 9: ops[2], 10: None}), None])
        for epoch in (1, 9, 10):
            run(network, {"x": 1}, epoch=epoch)
        assert [op.built for op in ops] == [[("torch", network.device)]] * 3 + [[]]

    def test_models_of_all_epochs_in_the_order_of_the_ops(self) -> None:
        models = [built(line, None) for _ in range(4)]
        ops = [ModelOp(model, "x", "y") for model in models]
        network = TorchNetwork([ops[2], EpochScheduler({1: ops[0], 5: ops[3]}), ops[2], ops[1]])
        assert network.models == [models[place] for place in (2, 0, 3, 1)]
        with network(mode="infer", epoch=1):
            assert network.ctx_models == {models[place] for place in (2, 0, 1)}
