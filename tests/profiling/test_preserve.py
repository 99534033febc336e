"""`fastnet.profile` restores the network: training continues like that of a twin."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler


class Net(torch.nn.Module):
    """Has all that training changes: weights, running averages, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        )
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        # a buffer that is another tensor after each step
        self.seen = self.seen + 1
        return torch.softmax(self.last(self.layers(x)), dim=1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def make(merge: int = 1, fused: bool = False, optimizer: Any = adam) -> TorchNetwork:
    torch.manual_seed(0)
    model: Any = fastnet.build(Net, optimizer)
    mode = "train" if fused else None  # ops in a Fuse share it
    ops: list[Any] = [
        LambdaOp(lambda x: x + random.random() + np.random.random(), "x", "noisy", mode=mode),
        ModelOp(model, "noisy", "y", mode=mode),
        CrossEntropy(("y", "label"), "loss", mode=mode),
        UpdateOp(model, "loss", merge_grad=merge),
    ]
    return TorchNetwork([Fuse(ops)] if fused else ops)


def batch() -> dict[str, Any]:
    source = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(5, 6, generator=source),
        "label": torch.tensor([0, 1, 2, 1, 0]),
    }


def train(network: TorchNetwork, steps: int, epoch: int = 1) -> list[float]:
    with network("train", epoch):
        return [float(network.run_step(batch())["loss"].mean()) for _ in range(steps)]


def state(network: TorchNetwork) -> dict[str, Any]:
    """Return all that there is of a model and its optimizer, by torch's own word."""
    (model,) = network.models
    optimizer = model.current_optimizer
    kept = {f"model {name}": value.clone() for name, value in model.state_dict().items()}
    kept |= {
        f"gradient {name}": None if one.grad is None else one.grad.clone()
        for name, one in model.named_parameters()
    }
    for number, values in optimizer.state_dict()["state"].items():
        kept |= {f"optimizer {number} {name}": one.clone() for name, one in values.items()}
    kept["groups"] = str(optimizer.state_dict()["param_groups"])
    kept["training"] = [module.training for module in model.modules()]
    return kept


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


def seed() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(("merge", "fused"), [(1, False), (4, False), (4, True)])
def test_training_goes_on_as_if_nothing_had_been(before: int, merge: int, fused: bool) -> None:
    plain, profiled = make(merge, fused), make(merge, fused)
    losses = []
    for network in (plain, profiled):
        seed()
        found = train(network, before)
        if network is profiled:
            # in the middle of a window of merged gradients, and for steps of several windows
            found_in_between = fastnet.profile(network, batch(), steps=6)
            assert found_in_between.section("train").steps == 6
        losses.append(found + train(network, 9))
    assert losses[0] == losses[1]
    check_same(state(plain), state(profiled))


def test_every_tensor_is_the_very_same() -> None:
    network = make()
    train(network, 2)
    (model,) = network.models
    was, tensors = state(network), list(model.parameters()) + list(model.buffers())
    moments = [one["exp_avg"] for one in model.current_optimizer.state.values()]
    fastnet.profile(network, batch(), steps=3)
    check_same(was, state(network))
    now = list(model.parameters()) + list(model.buffers())
    assert all(one is other for one, other in zip(tensors, now, strict=True))
    later = [one["exp_avg"] for one in model.current_optimizer.state.values()]
    assert all(one is other for one, other in zip(moments, later, strict=True))


def test_a_buffer_that_the_step_fills_is_empty_again() -> None:
    class Filling(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", None)
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            if self.mean is None:
                self.mean = x.mean()
            return (x - self.mean) * self.weight

    model: Any = fastnet.build(Filling, adam)
    network = TorchNetwork([ModelOp(model, "x", "y")])
    fastnet.profile(network, batch(), steps=3, mode="eval", update=False)
    assert model.mean is None
    assert "mean" not in model.state_dict()


def test_every_optimizer_of_a_scheduler() -> None:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    losses = []
    for profiled in (False, True):
        network = make(optimizer=EpochScheduler({1: adam, 3: sgd}))
        seed()
        found = train(network, 2, epoch=1)
        if profiled:
            (model,) = network.models
            fastnet.profile(network, batch(), epoch=3, steps=4)
            assert isinstance(model.current_optimizer, torch.optim.Adam)
        losses.append(found + train(network, 3, epoch=1) + train(network, 3, epoch=3))
    assert losses[0] == losses[1]


def test_weights_that_are_yet_to_come() -> None:
    def lazy() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.LazyLinear(3))

    model: Any = fastnet.build(lazy, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    network = TorchNetwork([ModelOp(model, "x", "y")])
    with pytest.raises(ValueError, match="A LazyLinear creates its parameters in its first"):
        fastnet.profile(network, batch(), steps=1)
    assert fastnet.profile(network, batch(), mode="eval", steps=1, update=True).sections
