"""What fastnet does differently on purpose, each beside the fault that FastEstimator 1.7.0 has.

One test for each row of docs/migration.md: FastEstimator's fault first, so that it is noticed if it
goes. Those of TensorFlow alone are in test_tf_mended.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.integrations.sides import Sides, batches, mlp

Pair = namedtuple("Pair", ["left", "right"])
ONES = {"x": torch.ones(2)}


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


def test_run_step_outside_a_context(sides: Sides) -> None:
    network = copier(sides.fastestimator)
    network("eval", 1, "")
    assert network.run_step(dict(ONES))["y"].equal(ONES["x"])  # and nobody minds
    network = copier(sides.fastnet)
    for configure in (False, True):
        if configure:
            network("eval", 1, "")
        with pytest.raises(ValueError, match=r"with network\(mode="):
            network.run_step(ONES)
    with network("eval", 1, ""):
        network.run_step(ONES)


def sliced(lib: Any) -> Any:
    return copier(lib, slicers=lib.slicer.AxisSlicer(0, slice="x"))


def scheduled(lib: Any) -> Any:
    class Broken(lib.schedule.Scheduler):  # type: ignore[misc]
        def get_current_value(self, epoch: int) -> Any:
            if epoch == 2:
                raise ValueError("no value today")

        def get_all_values(self) -> list[Any]:
            return [None]

    return lib.network.TorchNetwork([lib.op.tensorop.TensorOp("x", "y"), Broken()])


@pytest.mark.parametrize("make", [sliced, scheduled])
def test_an_opening_that_raises(sides: Sides, make: Any) -> None:
    theirs, ours = make(sides.fastestimator), make(sides.fastnet)
    for network in (theirs, ours):
        with pytest.raises(ValueError, match=r"un-sl|today"):
            network("eval", 2, "")
    with pytest.raises(ValueError, match="already active"):
        theirs("eval", 1, "", {"z"})
    with ours("eval", 1, "", {"z"}):
        ours.run_step(ONES)


def test_a_network_is_usable_after_an_op_has_raised(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        op = lib.op.tensorop.LambdaOp(lambda x: x.no_such_thing(), "x", "y")
        network = lib.network.TorchNetwork([op])
        for _ in range(2):
            with network("eval", 1, ""), pytest.raises(AttributeError, match="no_such_thing"):
                network.run_step(ONES)
        return network.ctx_state

    sides.agree(program)


def test_a_network_has_one_user(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = copier(lib)
        with network("eval", 1, "") as entered:
            with pytest.raises(ValueError, match=r"."):
                network("train", 2, "")
            return dict(entered.run_step(ONES)), network.ctx_state["mode"]

    sides.agree(program)


def test_no_op_in_force(sides: Sides) -> None:
    def make(lib: Any) -> Any:
        return lib.network.TorchNetwork([lib.op.tensorop.TensorOp("x", "y", mode="train")])

    with pytest.raises(TypeError, match="union"):
        make(sides.fastestimator)("eval", 1, "")
    with make(sides.fastnet)("eval", 1, "") as network:
        result = network.run_step(ONES)
    assert result == ONES
    assert result is not ONES


def test_transform_of_a_dict(sides: Sides) -> None:
    batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
    result = copier(sides.fastnet).transform(batch, mode="eval")
    assert batch == {"x": 1.5, "nest": {"deep": 2}}
    assert isinstance(result["nest"]["deep"], torch.Tensor)
    copier(sides.fastestimator).transform(batch, mode="eval")
    assert isinstance(batch["nest"]["deep"], torch.Tensor)


def test_deferral_is_not_written_into_ops(sides: Sides) -> None:
    network, update = trainer(sides.fastestimator)
    network("train", 1, "")  # configured, and never entered
    assert update.defer is True
    network, update = trainer(sides.fastnet)
    before = dict(vars(update))
    with network("train", 1, ""):
        network.run_step(batches(1)[0])
        assert vars(update) == before


def test_optimizers_in_a_schedule(sides: Sides) -> None:
    for name, settings in (
        ("EpochScheduler", {1: "adam", 3: None}),
        ("RepeatScheduler", ["adam", None]),
    ):
        theirs, ours = (
            getattr(lib.schedule, name)(settings.copy())
            for lib in (sides.fastestimator, sides.fastnet)
        )
        sides.fastestimator.build(mlp, theirs, model_name="mlp")
        assert isinstance(theirs.get_current_value(1), torch.optim.Adam)
        # a second model would be given the first one's
        with pytest.raises(ValueError, match="not callable"):
            sides.fastestimator.build(mlp, theirs, model_name="second")
        for model in [sides.fastnet.build(mlp, ours, model_name=one) for one in ("one", "two")]:
            (parameter, *_) = model.parameters()
            assert model.current_optimizer.param_groups[0]["params"][0] is parameter
        assert ours.get_all_values() == ["adam", None]


def test_types_of_nests(sides: Sides) -> None:
    util = sides.fastestimator.util.util
    tensor = torch.ones(2, requires_grad=True)
    with contextlib.suppress(TypeError):  # of a namedtuple that it cannot make
        assert type(util.detach_tensors(Pair(tensor, tensor))) is tuple
    assert util.detach_tensors(Record(tensor, "name")).value.requires_grad
    op = sides.fastnet.op.tensorop.LambdaOp(
        lambda x: Pair(x, Record(x.clone().requires_grad_() * 2, "name")), "x", "y"
    )
    result = sides.fastnet.network.TorchNetwork([op]).transform(dict(ONES), mode="infer")["y"]
    assert (type(result), type(result.right)) == (Pair, Record)
    assert not result.right.value.requires_grad


def test_too_few_outputs(sides: Sides) -> None:
    def run(lib: Any) -> Any:
        op = lib.op.tensorop.LambdaOp(lambda x: [x + 1], "x", ["y", "z"])
        return lib.network.TorchNetwork([op]).transform(dict(ONES), mode="eval")

    assert set(run(sides.fastestimator)) == {"x", "y"}
    with pytest.raises(ValueError, match=r"LambdaOp.*2 outputs.*returned 1 value"):
        run(sides.fastnet)


class Immovable(torch.Tensor):
    """What finds no room on a device."""

    def to(self, *args: Any, **settings: Any) -> Any:
        raise RuntimeError("out of memory")


def test_moves_of_optimizers(sides: Sides) -> None:
    from fastnet.network.torch.runner import move_optimizer

    def stuck(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        (parameter, *_) = model.parameters()
        memory = torch.ones(2).as_subclass(Immovable)
        model.current_optimizer.state[parameter]["exp_avg"] = memory
        return model.current_optimizer

    network, _ = trainer(sides.fastestimator)
    state = stuck(sides.fastestimator).state
    network._move_optimizer_between_device(state, torch.device("cpu"))  # in silence
    with pytest.raises(RuntimeError, match="out of memory"):
        move_optimizer(stuck(sides.fastnet), torch.device("cpu"))


def test_means_of_integers(sides: Sides) -> None:
    def run(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x.sum(), "x", "y")],
            slicers=[lib.slicer.AxisSlicer(0, slice="x"), lib.slicer.MeanUnslicer("y")],
        )
        return network.transform({"x": torch.tensor([[1], [2]])}, "eval")["y"]

    with pytest.raises(RuntimeError, match="can't be cast"):
        run(sides.fastestimator)
    assert run(sides.fastnet).equal(torch.tensor(1.5))


PROGRAM = """
from {lib}.network import Network, build
from {lib}.op.tensorop.loss import CrossEntropy
from {lib}.op.tensorop.model import ModelOp, UpdateOp
from {lib}.slicer import AxisSlicer
import sys, torch
model = build(lambda: torch.nn.Linear(2, 2), "sgd")
Network([ModelOp(model, "x", "y")]).transform({{"x": torch.ones(2, 2)}}, mode="infer")
print("tensorflow" in sys.modules)
"""


@pytest.mark.parametrize(("lib", "imports"), [("fastestimator", "True"), ("fastnet", "False")])
def test_imports_of_tensorflow(lib: str, imports: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(lib=lib)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip().splitlines()[-1] == imports


def test_updates_of_two_models_one_deferred(sides: Sides) -> None:
    def make(lib: Any) -> Any:
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

    with make(sides.fastestimator)("train", 1, "") as network, pytest.raises(KeyError, match="two"):
        network.run_step(batches(1)[0])
    network = make(sides.fastnet)
    before = [parameter.clone() for model in network.models for parameter in model.parameters()]
    with network("train", 1, ""):
        network.run_step(batches(1)[0])
    after = [parameter for model in network.models for parameter in model.parameters()]
    assert not any(map(torch.equal, before, after))


def test_delete_in_postprocessing(sides: Sides) -> None:
    """Of a key that the batch has, and of one that an op has made."""

    def run(lib: Any, key: str) -> Any:
        ops = lib.op.numpyop
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")],
            [ops.LambdaOp(lambda value: value + 1, key, "z"), ops.Delete(key)],
        )
        return set(network.transform(dict(ONES), "eval"))

    assert run(sides.fastestimator, "x") == {"x", "y", "z"}
    with pytest.raises(KeyError, match="y"):
        run(sides.fastestimator, "y")
    assert run(sides.fastnet, "x") == {"y", "z"}
    assert run(sides.fastnet, "y") == {"x", "z"}


def test_slicers_and_keys_of_postprocessing(sides: Sides) -> None:
    """A key that only postprocessing makes is made of what was joined again."""

    def run(lib: Any, *more: str) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")],
            lib.op.numpyop.LambdaOp(lambda y: y.sum(), "y", "z"),
            lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y", *more]),
        )
        return network.transform({"x": torch.ones(2, 2)}, "eval")

    with pytest.raises(ValueError, match="un-sliced"):
        run(sides.fastestimator)
    # to say how `z` is joined, which it never is, is what helps in FastEstimator
    for more in ((), ("z",)):
        assert run(sides.fastnet, *more)["z"] == 4
