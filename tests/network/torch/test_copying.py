"""Networks of torch models as values: copied, pickled, saved, sent to another process."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler
from tests.network.programs import (
    batches,
    line,
    mlp,
    run,
    run_all,
    same_weights,
    seeded,
    sgd,
    supervised,
)


def saved(network: Any) -> Any:
    """Save with torch, and load again."""
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


ways = pytest.mark.parametrize("way", [copy.deepcopy, saved], ids=lambda way: way.__name__)
Way = Callable[[Any], Any]


def square_mean(y: torch.Tensor) -> torch.Tensor:
    return (y**2).mean()


class TestACopy:
    @ways
    def test_has_models_and_optimizers_of_its_own(self, way: Way) -> None:
        schedule = EpochScheduler({1: sgd(), 3: None, 4: "adam"})
        model = fastnet.build(mlp, schedule, model_name="m")
        network = TorchNetwork(supervised(model))
        other = way(network)
        (twin,) = other.models
        assert twin is not model
        assert all(op.model is twin for op in other.ops if hasattr(op, "model"))
        own = [id(parameter) for parameter in twin.parameters()]
        for optimizer in twin.optimizer.get_all_values():
            if optimizer is not None:
                assert [
                    id(one) for group in optimizer.param_groups for one in group["params"]
                ] == own
        assert twin.current_optimizer is twin.optimizer.get_current_value(1)
        assert (twin.model_name, twin.loss_name) == ("m", {"loss"})
        assert not set(own) & {id(parameter) for parameter in model.parameters()}

    @ways
    def test_goes_on_in_the_middle_of_merged_steps_with_the_scaler(self, way: Way) -> None:
        """A scaler, which torch leaves out when it copies an optimizer."""
        model, twin = seeded(mlp), seeded(mlp)
        for one in (model, twin):
            fastnet.build(one, sgd(0.1))
            one.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        network, data = TorchNetwork(supervised(model, merge_grad=2)), batches(8)
        run_all(network, data[:5])
        other = way(network)
        run_all(other, data[5:])
        run_all(network, data[5:])
        run_all(TorchNetwork(supervised(twin, merge_grad=2)), data)
        (copied,) = other.models
        for one in (model, twin, copied):
            assert same_weights(one, model)
            assert one.optimizer.scaler.get_scale() == 32.0
        assert copied.optimizer.scaler is not model.optimizer.scaler

    def test_two_networks_that_share_a_model_still_do(self) -> None:
        model = fastnet.build(mlp, "sgd")
        one, two = copy.deepcopy(
            (TorchNetwork(supervised(model)), TorchNetwork([ModelOp(model, "x", "y")]))
        )
        assert one.models[0] is two.models[0]


class Counting(TensorOp):
    """An op with a slot, a module and a tensor that `build` makes."""

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__("x", "y")
        self.factor = factor
        self.library = np

    def build(self, framework: str, device: Any = None) -> None:
        self.total = torch.zeros(())

    def forward(self, data: Any, state: Any) -> Any:
        self.total = self.total + self.factor
        return data * self.total


@pytest.mark.parametrize("way", [copy.deepcopy, saved, copy.copy], ids=lambda way: way.__name__)
def test_ops_of_users_are_copied_with_all_they_have(way: Way) -> None:
    network = TorchNetwork([Counting(2.0)])
    run(network, {"x": torch.ones(1)})
    op = way(network.ops[0])
    assert (op.factor, op.library, float(op.total)) == (2.0, np, 2.0)
    assert op is not network.ops[0]


class Foreign(LambdaOp):
    """An op that is restored as FastEstimator restores its own."""

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("not reached")

    __setstate__.__module__ = "fastestimator.op.op"


FAILURES = (AttributeError, TypeError, pickle.PicklingError)


class TestWhatCannotBe:
    @ways
    def test_an_open_network(self, way: Way) -> None:
        network = TorchNetwork([ModelOp(fastnet.build(line, None, model_name="m"), "x", "y")])
        with network("infer", 1):
            with pytest.raises(ValueError, match="TorchNetwork is open"):
                way(network)
            network.run_step({"x": torch.ones(1, 2)})
        way(network)

    def test_a_lambda_is_copied_but_not_pickled(self) -> None:
        network = TorchNetwork([LambdaOp(lambda y: y, "x", "z")])
        with pytest.raises(FAILURES, match="lambda"):
            pickle.dumps(network)
        twin = copy.deepcopy(network)
        assert run(twin, {"x": torch.ones(1, 2)})["z"].shape == (1, 2)

    @ways
    def test_an_op_that_another_package_pickles_in_part(self, way: Way) -> None:
        network = TorchNetwork([Foreign(square_mean, "x", "y")])
        with pytest.raises(TypeError, match=r"its Foreign.* Use fastnet's"):
            way(network)
