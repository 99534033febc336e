"""Numbers that a trace would repeat: of generators other than torch's, and items of iterators."""

from __future__ import annotations

import io
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import QUICK, built, captured, falls_back, mlp


class Holding(TensorOp):
    """Adds what it reads of something that it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any] = lambda held: next(held)) -> None:
        super().__init__(inputs="x", outputs="x")
        self.held = held
        self.read = read

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return data + self.read(self.held)


def reading(work: Callable[[], Any]) -> TensorOp:
    return LambdaOp(lambda x: x + work(), "x", "x")


def noise() -> Iterator[float]:
    generator = np.random.default_rng(3)
    while True:
        yield generator.normal()


def first_in_loop(values: Any) -> Any:
    for value in values:
        return value


def quietly(values: Any) -> Any:
    try:
        return next(values)
    except Exception:
        return 100.0


def seed_all() -> float:
    random.seed(5)
    return 1.0


GLOBAL = random.Random(0)


def of_global() -> float:
    return GLOBAL.random()


DRAWS: dict[str, Callable[[], TensorOp]] = {
    "random": lambda: reading(random.random),
    "gauss": lambda: reading(lambda: random.gauss(0, 1)),
    "shuffle": lambda: reading(lambda: random.sample(range(9), 9)[0]),
    "numpy": lambda: reading(np.random.rand),
    "beta": lambda: reading(lambda: np.random.beta(1, 1)),
    "seed": lambda: reading(seed_all),
    "global Random": lambda: reading(of_global),
    "held Random": lambda: Holding(random.Random(1), lambda held: held.random()),
    "held Generator": lambda: Holding(np.random.default_rng(1), lambda held: held.normal()),
    "held RandomState": lambda: Holding(np.random.RandomState(1), lambda held: held.rand()),
    "held in a dict": lambda: Holding(
        {"rng": [np.random.default_rng(1)]}, lambda held: held["rng"][0].random()
    ),
    "bound method": lambda: reading(np.random.default_rng(1).random),
    "method in C": lambda: reading(random.Random(1).random),
    "two of one state": lambda: Holding(
        (lambda state: (np.random.Generator(state), state))(np.random.PCG64(1)),
        lambda held: held[0].random(),
    ),
    "count": lambda: Holding(itertools.count()),
    "cycle": lambda: Holding([itertools.cycle([1, 2, 3])], lambda held: next(held[0])),
    "list": lambda: Holding(iter([*range(9)]), lambda held: held.__next__()),
    "partial": lambda: reading(partial(next, iter([*range(9)]))),
    "bound next": lambda: reading(iter([*range(9)]).__next__),
    "zip": lambda: Holding(zip(range(9), range(9), strict=True), lambda held: next(held)[0]),
    "generator": lambda: Holding(number for number in range(9)),
    "generator in a loop": lambda: Holding((number for number in range(9)), first_in_loop),
    "noise": lambda: Holding(noise()),
    "caught": lambda: Holding((number for number in range(9)), quietly),
}


def seeded() -> None:
    random.seed(2)
    np.random.seed(2)
    GLOBAL.seed(2)


@pytest.mark.parametrize("name", DRAWS)
def test_step_that_draws_outside_of_torch_runs_eagerly(name: str) -> None:
    make = DRAWS[name]
    op, other = make(), make()
    network = TorchNetwork([op], compile=QUICK)
    seeded()
    with falls_back(network, "draw in the loader, or with torch", "infer"):
        found = [network.run_step({"x": torch.full((2,), float(place))})["x"] for place in range(5)]
    after = random.random(), np.random.rand(), GLOBAL.random()
    seeded()
    inputs = [torch.full((2,), float(place)) for place in range(5)]
    expected = [
        other.fn(x) if isinstance(other, LambdaOp) else other.forward(x, {}) for x in inputs
    ]
    for one, value in zip(found, expected, strict=True):
        torch.testing.assert_close(one, value)
    assert after == (random.random(), np.random.rand(), GLOBAL.random())


def test_step_whose_draws_cannot_be_repeated_is_not_frozen() -> None:
    op = Holding(random.SystemRandom(), lambda held: held.random())
    network = TorchNetwork([op], compile=QUICK)
    with falls_back(network, "draw in the loader, or with torch", "infer"):
        found = {network.run_step({"x": torch.zeros(1)})["x"].item() for _ in range(4)}
    assert len(found) == 4


def test_step_that_draws_beside_dropout_runs_eagerly() -> None:
    model = built(lambda: mlp(0.5))
    op = LambdaOp(lambda x: x * np.random.beta(0.4, 0.4), "x", "x")
    network = TorchNetwork([op, ModelOp(model, "x", "pred")], compile=QUICK)
    with falls_back(network, "numpy's global generator", "train"):
        for _ in range(3):
            network.run_step({"x": torch.ones(2, 6)})


BITS = np.random.PCG64(1)
HELD: dict[str, Any] = {
    "Random": random.Random(1),
    "Generator": np.random.default_rng(1),
    "two of one state": [np.random.default_rng(BITS), BITS, random.random],
    "method": random.Random(1).random,
    "file": io.StringIO("text"),
    "lock": threading.Lock(),
    "pattern": re.compile("a"),
    "sentinel": object(),
}


@pytest.mark.parametrize("name", HELD)
def test_step_that_holds_but_does_not_advance_stays_compiled(name: str) -> None:
    op = Holding(HELD[name], lambda held: 1.0 if held else 2.0)
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(4):
            result = network.run_step({"x": torch.full((2,), float(place))})["x"]
            assert result.tolist() == [place + 1.0] * 2
    assert captured(network) == 1


def test_iterator_that_no_code_names_does_not_matter() -> None:
    op = LambdaOp(lambda x: x + 1, "x", "x")
    vars(op)["unnamed"] = iter([1, 2])
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
    assert captured(network) == 1
    assert next(vars(op)["unnamed"]) == 1


SEEDS: dict[str, Callable[[], Any]] = {
    "manual_seed": lambda: torch.manual_seed(3),
    "generator": lambda: torch.default_generator.manual_seed(3),
    "random": lambda: torch.random.manual_seed(3),
}


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("draws", [False, True])
def test_op_that_seeds_torch_seeds_in_each_step(name: str, draws: bool) -> None:
    seed = SEEDS[name]
    # The state that the op sets is there before the trace, and Dynamo has been used.
    torch.manual_seed(3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        seed()
        return x + (torch.rand(2) if draws else 1)

    network = TorchNetwork([LambdaOp(fn, "x", "x")], compile=QUICK)
    with falls_back(network, "seed, fork or restore torch's random state", "infer"):
        found = [
            (network.run_step({"x": torch.ones(2)})["x"], torch.rand(1).item()) for _ in range(4)
        ]
    expected = [(fn(torch.ones(2)), torch.rand(1).item()) for _ in range(4)]
    for (result, drawn), (value, number) in zip(found, expected, strict=True):
        assert torch.equal(result, value)
        assert drawn == number


def test_code_that_names_a_seed_but_does_not_set_it_stays_compiled() -> None:
    op = Holding(nn.Identity(), lambda held: 1.0 if held else torch.manual_seed(1))
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
    assert captured(network) == 1
