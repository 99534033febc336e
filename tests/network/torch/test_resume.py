"""Resumed runs in torch, compared with runs that were not interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastnet
from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.network.programs import same_weights
from tests.network.resuming import Resumable

Optimizer = torch.optim.Optimizer


class Program(Resumable):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def make_inputs(self, step: int) -> torch.Tensor:
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))


def resumed_equals(path: Path, make: Callable[[], Program], split: int = 4, end: int = 9) -> bool:
    """Return whether a run that another program resumes ends with the weights of one run."""
    random.seed(0)
    torch.manual_seed(0)
    program = make()
    program.train(range(split))
    fastnet.save_checkpoint(path, program.network)
    program.train(range(split, end))
    random.seed(1)
    torch.manual_seed(1)
    resumed = make()
    fastnet.load_checkpoint(path, resumed.network)
    resumed.train(range(split, end))
    return same_weights(program.model, resumed.model)


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def generator() -> np.random.Generator:
    return np.random.default_rng(random.randrange(10**6))


class Slotted:
    __slots__ = ("empty", "generator")

    def __init__(self) -> None:
        self.generator = generator()


class Noise(TensorOp):
    """Adds a number that a subclass draws."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="x")

    def draw(self) -> float:
        raise NotImplementedError

    def forward(self, data: Any, state: Any) -> Any:
        return data + self.draw()


def from_slot() -> Any:
    slotted = Slotted()
    return LambdaOp(lambda x: x + slotted.generator.normal(), "x", "x")


def from_default() -> Any:
    held = generator()

    def add(x: Any, source: Any = held) -> Any:
        return x + source.normal()

    return LambdaOp(lambda x: add(x), "x", "x")


def from_keyword_default() -> Any:
    held = generator()

    def add(x: Any, *, source: Any = held) -> Any:
        return x + source.normal()

    return LambdaOp(add, "x", "x")


def from_class() -> Any:
    class Drawing(Noise):
        source = generator()

        def draw(self) -> float:
            return float(self.source.normal())

    return Drawing()


def from_method() -> Any:
    source = generator()

    class Drawing(Noise):
        def draw(self) -> float:
            return float(source.normal())

    return Drawing()


def from_builtin_method() -> Any:
    draw = random.Random(random.random()).random
    return LambdaOp(lambda x: x + draw(), "x", "x")


def from_decorated() -> Any:
    source = generator()

    @torch.no_grad()
    def add(x: Any) -> Any:
        return x + source.normal()

    return LambdaOp(lambda x: add(x), "x", "x")


@pytest.mark.parametrize(
    "make_op",
    [
        from_slot,
        from_default,
        from_keyword_default,
        from_class,
        from_method,
        from_builtin_method,
        from_decorated,
    ],
)
def test_generators_are_found(tmp_path: Path, make_op: Callable[[], Any]) -> None:
    assert resumed_equals(tmp_path / "run", lambda: Program(sgd, lambda: [make_op()]))


class SlowWeights(Optimizer):
    """Steps towards the average of the weights now and then, and saves these averages."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0
        self.slow = [one.detach().clone() for one in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for weight, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            weight.sub_(self.param_groups[0]["lr"] * weight.grad)
            if self.steps % 3 == 0:
                weight.copy_(slow.add_(0.5 * (weight - slow)))

    def state_dict(self) -> dict[str, Any]:
        # The name of a part that fastnet saves itself.
        return {**super().state_dict(), "names": self.steps, "slow": self.slow}

    def load_state_dict(self, state_dict: Any) -> None:
        self.steps = state_dict["names"]
        self.slow = [one.clone() for one in state_dict["slow"]]
        super().load_state_dict(state_dict)


class Wrapper(Optimizer):
    """Lowers the rate of another optimizer in each step, and saves it whole."""

    def __init__(self, parameters: Any) -> None:
        self.inner = sgd(parameters)
        self.steps = 0
        super().__init__(self.inner.param_groups, {})
        self.param_groups = self.inner.param_groups

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        self.param_groups[0]["lr"] = 0.1 / self.steps
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.inner.state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict["optimizer"])
        self.param_groups = self.inner.param_groups
        self.steps = state_dict["steps"]


@pytest.mark.parametrize("optimizer_fn", [SlowWeights, Wrapper])
@pytest.mark.filterwarnings("error:.*not saved")
def test_optimizers_with_own_state(tmp_path: Path, optimizer_fn: Any) -> None:
    assert resumed_equals(tmp_path / "run", lambda: Program(optimizer_fn))


@pytest.mark.parametrize("optimizer_fn", [SlowWeights, Wrapper])
def test_failed_load_restores_own_state(tmp_path: Path, optimizer_fn: Any) -> None:
    class Failing(LambdaOp):
        fails = True

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            if self.fails:
                self.fails = False
                raise ZeroDivisionError

    torch.manual_seed(0)
    alone = Program(optimizer_fn)
    alone.train(range(6))
    torch.manual_seed(0)
    program = Program(optimizer_fn, lambda: [Failing(lambda x: x, "x", "x")])
    fastnet.save_checkpoint(tmp_path / "run", program.network)
    program.train(range(4))
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        fastnet.load_checkpoint(tmp_path / "run", program.network)
    program.train(range(4, 6))
    assert same_weights(alone.model, program.model)


def test_rates_in_a_shared_tensor_stay_shared(tmp_path: Path) -> None:
    rates = []

    def with_tensor(parameters: Any) -> Optimizer:
        first, *rest = parameters
        rates.append(torch.tensor(0.1))
        return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=rates[-1])

    def make() -> Program:
        def decay(model: nn.Module, step: int) -> None:
            rate.mul_(0.8)

        program = Program(with_tensor, before=decay)
        rate = rates[-1]
        return program

    assert resumed_equals(tmp_path / "run", make)


@pytest.mark.parametrize("unfreezes", [False, True])
def test_merged_gradients_of_frozen_parameters(tmp_path: Path, unfreezes: bool) -> None:
    def freeze(model: nn.Module, step: int) -> None:
        model[0].weight.requires_grad_(step < 2 or (unfreezes and step > 5))

    make = lambda: Program(sgd, before=freeze, merge_grad=7)  # noqa: E731
    assert resumed_equals(tmp_path / "run", make)
