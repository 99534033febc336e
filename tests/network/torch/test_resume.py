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
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import same_weights

Optimizer = torch.optim.Optimizer


class Program:
    """A network and its model, and what happens before each step of a run."""

    def __init__(
        self,
        optimizer_fn: Any,
        ops: Callable[[], list[Any]] = list,
        before: Callable[[nn.Module, int], object] = lambda model, step: None,
        **settings: Any,
    ) -> None:
        self.model = fastnet.build(
            lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
            optimizer_fn,
            model_name="line",
        )
        self.before = before
        self.network = fastnet.Network(
            [
                *ops(),
                ModelOp(self.model, "x", "y"),
                MeanSquaredError(("y", "t"), "loss"),
                UpdateOp(self.model, "loss", **settings),
            ]
        )

    def train(self, steps: range) -> None:
        """Run steps, each in a context of its own, with batches that depend on the step only."""
        for step in steps:
            self.before(self.model, step)
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            self.network.transform({"x": x, "t": x.sum(1, keepdim=True)}, "train")


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
