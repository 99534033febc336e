"""What fastnet does differently on purpose, each beside the fault that FastEstimator 1.7.0 has.

One class a fault. The first test of each shows FastEstimator's, so that it is noticed if it goes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.integrations.sides import Sides, batches, mlp

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    value: torch.Tensor
    name: str


def copier(lib: Any, **settings: Any) -> Any:
    return lib.network.TorchNetwork([lib.op.tensorop.TensorOp("x", "y")], **settings)


def trainer(lib: Any, **settings: Any) -> tuple[Any, Any]:
    """A network that ends with an update, and that update."""
    model = lib.build(mlp, "sgd", model_name="mlp")
    update = lib.op.tensorop.model.UpdateOp(model, "loss", **settings)
    network = lib.Network(
        [
            lib.op.tensorop.model.ModelOp(model, "x", "y"),
            lib.op.tensorop.loss.MeanSquaredError(("y", "target"), "loss"),
            update,
        ]
    )
    return network, update


class TestRunStepOutsideAContext:
    def test_is_not_caught(self, sides: Sides) -> None:
        """Configured, but not entered: the lock is not held, and nobody minds."""
        network = copier(sides.fastestimator)
        network("eval", 1, "")
        assert not network.ctx_lock.locked()
        assert network.run_step({"x": torch.ones(2)})["y"].equal(torch.ones(2))

    def test_is_refused(self, sides: Sides) -> None:
        network = copier(sides.fastnet)
        with pytest.raises(ValueError, match=r"with network\(mode="):
            network.run_step({"x": torch.ones(2)})
        network("eval", 1, "")
        with pytest.raises(ValueError, match=r"with network\(mode="):
            network.run_step({"x": torch.ones(2)})
        with network("eval", 1, ""):
            network.run_step({"x": torch.ones(2)})


class TestAnOpeningThatRaises:
    @staticmethod
    def sliced(lib: Any) -> Any:
        return copier(lib, slicers=lib.slicer.AxisSlicer(0, slice="x"))

    @staticmethod
    def scheduled(lib: Any) -> Any:
        class Broken(lib.schedule.Scheduler):  # type: ignore[misc]
            def get_current_value(self, epoch: int) -> Any:
                if epoch == 2:
                    raise ValueError("no value today")

            def get_all_values(self) -> list[Any]:
                return [None]

        ops = [lib.op.tensorop.TensorOp("x", "y"), Broken()]
        return lib.network.TorchNetwork(ops)

    def test_keeps_the_lock(self, sides: Sides) -> None:
        for network in self.sliced(sides.fastestimator), self.scheduled(sides.fastestimator):
            with pytest.raises(ValueError, match=r"un-sliced|today"):
                network("eval", 2, "")
            with pytest.raises(ValueError, match="already active"):
                network("eval", 1, "", {"z"})

    def test_leaves_it_usable(self, sides: Sides) -> None:
        for network in self.sliced(sides.fastnet), self.scheduled(sides.fastnet):
            with pytest.raises(ValueError, match=r"un-slices|today"):
                network("eval", 2, "")
            with network("eval", 1, "", {"z"}):
                network.run_step({"x": torch.ones(2)})

    def test_leaves_it_usable_after_an_op_has_raised(self, sides: Sides) -> None:
        def program(lib: Any) -> Any:
            op = lib.op.tensorop.LambdaOp(lambda x: x.no_such_thing(), "x", "y")
            network = lib.network.TorchNetwork([op])
            for _ in range(2):
                with network("eval", 1, ""), pytest.raises(AttributeError, match="no_such_thing"):
                    network.run_step({"x": torch.ones(2)})
            return network.ctx_state

        sides.agree(program)

    def test_two_users(self, sides: Sides) -> None:
        def program(lib: Any) -> Any:
            network = copier(lib)
            with network("eval", 1, "") as entered:
                with pytest.raises(ValueError, match=r"."):
                    network("train", 2, "")
                with pytest.raises(ValueError, match=r"."):
                    network.__enter__()
                return dict(entered.run_step({"x": torch.ones(2)})), network.ctx_state["mode"]

        sides.agree(program)


class TestNoOpInForce:
    @staticmethod
    def network(lib: Any) -> Any:
        return lib.network.TorchNetwork([lib.op.tensorop.TensorOp("x", "y", mode="train")])

    def test_is_a_type_error(self, sides: Sides) -> None:
        with pytest.raises(TypeError, match="union"):
            self.network(sides.fastestimator)("eval", 1, "")

    def test_gives_the_batch_back(self, sides: Sides) -> None:
        network = self.network(sides.fastnet)
        batch = {"x": torch.ones(2)}
        with network("eval", 1, ""):
            result = network.run_step(batch)
        assert result == batch
        assert result is not batch


class TestTransformOfADict:
    def test_replaces_the_callers_values(self, sides: Sides) -> None:
        batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
        copier(sides.fastestimator).transform(batch, mode="eval")
        assert isinstance(batch["x"], torch.Tensor)
        assert isinstance(batch["nest"]["deep"], torch.Tensor)

    def test_leaves_them(self, sides: Sides) -> None:
        batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
        result = copier(sides.fastnet).transform(batch, mode="eval")
        assert batch == {"x": 1.5, "nest": {"deep": 2}}
        assert isinstance(result["y"], torch.Tensor)
        assert isinstance(result["nest"]["deep"], torch.Tensor)


class TestDeferral:
    def test_is_written_into_ops_and_left_there(self, sides: Sides) -> None:
        network, update = trainer(sides.fastestimator)
        network("train", 1, "")  # configured, and never entered
        assert update.defer is True
        # the next one takes that for the user's own setting, for good
        with network("train", 1, ""):
            pass
        assert update.defer is True

    def test_is_nobodys_business(self, sides: Sides) -> None:
        network, update = trainer(sides.fastnet)
        before = dict(vars(update))
        network("train", 1, "")
        assert update.defer is False
        with network("train", 1, ""):
            assert update.defer is False
            network.run_step(batches(1)[0])
        assert vars(update) == before


class TestOptimizersInASchedule:
    @staticmethod
    def schedulers(lib: Any) -> list[Any]:
        return [
            lib.schedule.EpochScheduler({1: "adam", 3: None}),
            lib.schedule.RepeatScheduler(["adam", None]),
        ]

    def test_are_built_in_place(self, sides: Sides) -> None:
        for scheduler in self.schedulers(sides.fastestimator):
            sides.fastestimator.build(mlp, scheduler, model_name="mlp")
            assert isinstance(scheduler.get_current_value(1), torch.optim.Adam)
            # a second model would be given the first one's
            with pytest.raises(ValueError, match="not callable"):
                sides.fastestimator.build(mlp, scheduler, model_name="second")

    def test_are_built_in_a_copy(self, sides: Sides) -> None:
        for scheduler in self.schedulers(sides.fastnet):
            one = sides.fastnet.build(mlp, scheduler, model_name="one")
            two = sides.fastnet.build(mlp, scheduler, model_name="two")
            assert scheduler.get_all_values() == ["adam", None]
            for model in (one, two):
                (parameter, *_) = model.parameters()
                assert isinstance(model.current_optimizer, torch.optim.Adam)
                assert model.current_optimizer.param_groups[0]["params"][0] is parameter


class TestPrecisionPolicy:
    """Of Keras, which `build` sets even for torch models."""

    @pytest.fixture(autouse=True)
    def _restored(self, sides: Sides) -> Any:
        from tensorflow.keras import mixed_precision

        before = mixed_precision.global_policy()
        yield
        mixed_precision.set_global_policy(before)

    @staticmethod
    def policy() -> str:
        from tensorflow.keras import mixed_precision

        return str(mixed_precision.global_policy().name)

    def test_is_left_changed(self, sides: Sides) -> None:
        sides.fastestimator.build(mlp, "sgd", model_name="mlp", mixed_precision=True)
        assert self.policy() == "mixed_float16"
        sides.fastestimator.build(mlp, "sgd", model_name="mlp")
        assert self.policy() == "float32"

    def test_is_left_alone(self, sides: Sides) -> None:
        from tensorflow.keras import mixed_precision

        mixed_precision.set_global_policy("float64")
        for mixed in (True, False):
            sides.fastnet.build(mlp, "sgd", model_name="mlp", mixed_precision=mixed)
            assert self.policy() == "float64"


class TestNests:
    @staticmethod
    def moved(lib: Any, value: Any) -> Any:
        return lib.util.move_tensors_to_device(value, torch.device("cpu"))

    @staticmethod
    def detached(lib: Any, value: Any) -> Any:
        return lib.util.detach_tensors(value)

    def test_lose_their_types(self, sides: Sides) -> None:
        util = sides.fastestimator.util.util
        tensor = torch.ones(2, requires_grad=True)
        for change in (
            util.detach_tensors,
            lambda value: util.move_tensors_to_device(value, torch.device("cpu")),
        ):
            try:
                result = change(Pair(tensor, tensor))
            except TypeError:
                pass
            else:
                assert type(result) is tuple
        assert util.detach_tensors(Record(tensor, "name")).value.requires_grad

    def test_keep_them(self, sides: Sides) -> None:
        tensor = torch.ones(2, requires_grad=True)
        nest = {"pair": Pair(tensor, [Record(tensor, "name")]), "set": {tensor}}
        for change in self.detached, self.moved:
            result = change(sides.fastnet, nest)
            assert type(result["pair"]) is Pair
            (record,) = result["pair"].right
            assert type(record) is Record
            assert record.name == "name"
            assert type(result["set"]) is set
        assert not self.detached(sides.fastnet, nest)["pair"].right[0].value.requires_grad
        assert tensor.requires_grad

    def test_keep_them_through_a_step(self, sides: Sides) -> None:
        network = sides.fastnet.network.TorchNetwork(
            [
                sides.fastnet.op.tensorop.LambdaOp(
                    lambda x: Pair(x, Record(x.requires_grad_() * 2, "name")), "x", "y"
                )
            ]
        )
        result = network.transform({"x": torch.ones(2)}, mode="infer")["y"]
        assert (type(result), type(result.right)) == (Pair, Record)
        assert not result.right.value.requires_grad


class TestTooFewOutputs:
    @staticmethod
    def network(lib: Any) -> Any:
        op = lib.op.tensorop.LambdaOp(lambda x: [x + 1], "x", ["y", "z"])
        return lib.network.TorchNetwork([op])

    def test_are_written_without_a_word(self, sides: Sides) -> None:
        result = self.network(sides.fastestimator).transform({"x": torch.ones(2)}, mode="eval")
        assert set(result) == {"x", "y"}

    def test_are_an_error(self, sides: Sides) -> None:
        network = self.network(sides.fastnet)
        with pytest.raises(ValueError, match=r"LambdaOp.*2 outputs.*returned 1 value"):
            network.transform({"x": torch.ones(2)}, mode="eval")


class TestMovesOfOptimizers:
    """To a device that has no room, or is not there."""

    class Immovable(torch.Tensor):
        def to(self, *args: Any, **settings: Any) -> Any:
            raise RuntimeError("out of memory")

    def stuck(self, lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        optimizer = model.current_optimizer
        (parameter, *_) = model.parameters()
        optimizer.state[parameter]["exp_avg"] = torch.ones(2).as_subclass(self.Immovable)
        return optimizer

    def test_fail_in_silence(self, sides: Sides) -> None:
        network, _ = trainer(sides.fastestimator)
        optimizer = self.stuck(sides.fastestimator)
        network._move_optimizer_between_device(optimizer.state, torch.device("cpu"))

    def test_fail_aloud(self, sides: Sides) -> None:
        from fastnet.network.torch.runner import move_optimizer

        with pytest.raises(RuntimeError, match="out of memory"):
            move_optimizer(self.stuck(sides.fastnet), torch.device("cpu"))


class TestMeansOfIntegers:
    @staticmethod
    def network(lib: Any) -> Any:
        ops = lib.op.tensorop
        return lib.network.TorchNetwork(
            [ops.LambdaOp(lambda x: x.sum(), "x", "y")],
            slicers=[lib.slicer.AxisSlicer(0, slice="x"), lib.slicer.MeanUnslicer("y")],
        )

    def test_fail(self, sides: Sides) -> None:
        with pytest.raises(RuntimeError, match="can't be cast"):
            self.network(sides.fastestimator).transform({"x": torch.tensor([[1], [2]])}, "eval")

    def test_are_floats(self, sides: Sides) -> None:
        result = self.network(sides.fastnet).transform({"x": torch.tensor([[1], [2]])}, "eval")
        assert result["y"].equal(torch.tensor(1.5))


class TestImports:
    PROGRAM = """
        from {lib}.network import Network, TorchNetwork, build
        from {lib}.op.tensorop import LambdaOp
        from {lib}.op.tensorop.loss import CrossEntropy
        from {lib}.op.tensorop.model import ModelOp, UpdateOp
        from {lib}.slicer import AxisSlicer
        import sys, torch
        model = build(lambda: torch.nn.Linear(2, 2), "sgd")
        Network([ModelOp(model, "x", "y")]).transform({{"x": torch.ones(2, 2)}}, mode="infer")
        print("tensorflow" in sys.modules)
    """

    def imports_tensorflow(self, lib: str) -> str:
        lines = (line.strip() for line in self.PROGRAM.format(lib=lib).splitlines())
        run = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
        )
        return run.stdout.strip().splitlines()[-1]

    def test_are_all_made(self, sides: Sides) -> None:
        assert self.imports_tensorflow("fastestimator") == "True"

    def test_are_made_where_needed(self, sides: Sides) -> None:
        assert self.imports_tensorflow("fastnet") == "False"


# What follows is not in the design's table.


class TestUpdatesOfTwoModels:
    """One is deferred, the other is not."""

    @staticmethod
    def network(lib: Any) -> Any:
        one, two = lib.build(lambda: [mlp(), mlp()], ["sgd", "sgd"], model_name=["one", "two"])
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        return lib.Network(
            [
                models.ModelOp(one, "x", "y"),
                models.ModelOp(two, "x", "z"),
                ops.loss.MeanSquaredError(("y", "target"), "loss"),
                ops.loss.MeanSquaredError(("z", "target"), "other loss"),
                models.UpdateOp(one, "loss", defer=True),
                models.UpdateOp(two, "other loss"),
                ops.TensorOp("y", "y"),
            ]
        )

    def test_fail(self, sides: Sides) -> None:
        network = self.network(sides.fastestimator)
        with network("train", 1, ""), pytest.raises(KeyError, match="two"):
            network.run_step(batches(1)[0])

    def test_are_made(self, sides: Sides) -> None:
        network = self.network(sides.fastnet)
        before = [parameter.clone() for model in network.models for parameter in model.parameters()]
        with network("train", 1, ""):
            network.run_step(batches(1)[0])
        after = [parameter for model in network.models for parameter in model.parameters()]
        assert not any(map(torch.equal, before, after))


class TestDeleteAfterwards:
    """In postprocessing, of a key that the batch has, and of one that an op has made."""

    @staticmethod
    def network(lib: Any, key: str) -> Any:
        ops = lib.op.numpyop
        return lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")],
            [ops.LambdaOp(lambda value: value + 1, key, "z"), ops.Delete(key)],
        )

    def test_does_nothing_or_fails(self, sides: Sides) -> None:
        network = self.network(sides.fastestimator, "x")
        assert set(network.transform({"x": torch.ones(2)}, "eval")) == {"x", "y", "z"}
        with pytest.raises(KeyError, match="y"):
            self.network(sides.fastestimator, "y").transform({"x": torch.ones(2)}, "eval")

    def test_deletes(self, sides: Sides) -> None:
        for key, left in (("x", {"y", "z"}), ("y", {"x", "z"})):
            network = self.network(sides.fastnet, key)
            assert set(network.transform({"x": torch.ones(2)}, "eval")) == left


class TestSlicersAndPostprocessing:
    """A key that only postprocessing makes is made of what was joined again."""

    @staticmethod
    def network(lib: Any, *more: str) -> Any:
        return lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")],
            lib.op.numpyop.LambdaOp(lambda y: y.sum(), "y", "z"),
            lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y", *more]),
        )

    def test_are_at_odds(self, sides: Sides) -> None:
        with pytest.raises(ValueError, match="un-sliced"):
            self.network(sides.fastestimator).transform({"x": torch.ones(2, 2)}, "eval")

    def test_go_together(self, sides: Sides) -> None:
        # to say how `z` is joined, which it never is, is what helps in FastEstimator
        for more in ((), ("z",)):
            result = self.network(sides.fastnet, *more).transform({"x": torch.ones(2, 2)}, "eval")
            assert result["z"] == 4
