"""Python numbers that change between steps become inputs of a program, or steps run eagerly."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    QUICK,
    batches,
    built,
    captured,
    cross_entropy,
    fallbacks,
    falls_back,
    run_both,
)
from tests.network.torch.compiled.test_inductor import by_inductor

Use = Callable[[torch.Tensor, Any], torch.Tensor]
FLOATS = (0.5, 0.25, 0.7, 0.1)


class Weighted(TensorOp):
    """Weights the loss by a number."""

    def __init__(self, use: Use, weight: float) -> None:
        super().__init__("loss", "loss")
        self.use, self.weight = use, weight

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return self.use(data, self.weight)


def train(use: Use, weights: Sequence[float], options: CompileOptions) -> TorchNetwork:
    """Train with each weight for two steps, compiled and eagerly; return the compiled network."""

    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        loss = LambdaOp(cross_entropy, ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, Weighted(use, weights[0])]
        return TorchNetwork([*ops, UpdateOp(model, "loss")], compile=compile)

    def before(place: int, network: TorchNetwork) -> None:
        network.ops[2].weight = weights[place // 2]

    return run_both(make, batches(2 * len(weights)), before, options)


@pytest.mark.parametrize(
    ("use", "weights"),
    [
        (lambda loss, weight: loss * weight, FLOATS),
        (lambda loss, weight: (1 - weight) * loss + weight * weight / 2, FLOATS),
        (lambda loss, weight: weight - loss.double() / weight, FLOATS),
        (lambda loss, weight: (loss.bfloat16().expand(2) * weight).sum(), (0.5, 0.25, 2.0)),
        (lambda loss, weight: loss * weight / 7, (1, 2, 3, -4)),
        (lambda loss, weight: loss * weight, (0.5, math.nan, 0.25, -0.0, 0.0, math.inf)),
    ],
)
def test_a_number_in_arithmetic_becomes_an_input(use: Use, weights: Sequence[float]) -> None:
    network = train(use, weights, QUICK)
    assert captured(network) == 2
    assert "Weighted" in network.traces[1].reason
    assert ".weight has changed; it is an input" in network.traces[1].reason


def test_two_numbers_that_change_in_turn_become_inputs() -> None:
    class Scaled(TensorOp):
        factor, offset = 1.0, 2

        def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
            return data * self.factor + self.offset

    op = Scaled("x", "y")
    op.factor, op.offset = 1.0, 2
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(24):
            if place % 4 == 2:
                op.factor = place / 2
            elif place % 4 == 0:
                op.offset = place
            found = network.run_step({"x": torch.ones(1)})["y"].item()
            assert found == op.factor + op.offset
    assert captured(network) == 3
    assert all("it is an input" in one.reason for one in network.traces[1:])


@by_inductor
@pytest.mark.slow
def test_a_number_becomes_an_input_by_inductor() -> None:
    network = train(lambda loss, weight: (1 - weight) * loss, FLOATS, CompileOptions())
    assert captured(network) == 2


@pytest.mark.parametrize(
    ("use", "weights", "reason"),
    [
        (lambda loss, weight: loss * min(1.0, weight), FLOATS, "decides a branch"),
        (lambda loss, weight: loss if weight > 0.3 else 2 * loss, FLOATS, "decides a branch"),
        (lambda loss, weight: loss**weight, FLOATS, "weight"),
        (lambda loss, weight: loss * torch.ones(weight).sum(), (1, 2, 3, 4), "weight"),
        (lambda loss, weight: functional.leaky_relu(loss - 1, weight), FLOATS, "leaky_relu"),
        (lambda loss, weight: loss + torch.full((2,), weight).sum(), FLOATS, "full"),
    ],
)
def test_a_number_that_decides_runs_eagerly_from_the_third_trace(
    use: Use, weights: Sequence[float], reason: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network = train(use, weights, QUICK)
    assert [one.fallback is None for one in network.traces] == [True, True, False]
    fallback = network.traces[2].fallback
    assert ".weight is a number that keeps changing" in fallback
    assert network.traces[2].reason.endswith(".weight has changed")
    assert reason in fallback
    assert [fallback in str(one.message) for one in caught].count(True) == 1


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_branch_on_the_class_of_a_number_is_noticed() -> None:
    def use(loss: torch.Tensor, weight: float) -> torch.Tensor:
        return loss * (weight if isinstance(weight, float) else 9.0)

    network = train(use, FLOATS, QUICK)
    assert "gave other results" in network.traces[-1].fallback


def test_a_number_in_a_list_runs_eagerly_from_the_third_trace() -> None:
    held = [1.0]
    network = TorchNetwork([LambdaOp(lambda x: x * held[0], "x", "y")], compile=QUICK)
    with falls_back(network, "is a number that keeps changing", "infer"):
        for place in range(8):
            held[0] = float(place // 2)
            assert network.run_step({"x": torch.ones(1)})["y"].item() == held[0]


def test_a_number_that_the_op_changes_itself_is_no_input() -> None:
    class Decaying(TensorOp):
        factor, decays = 1.0, False

        def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
            if self.decays:
                self.factor *= 0.5
            return data * self.factor

    op = Decaying("x", "y")
    op.factor = 1.0
    network = TorchNetwork([op], compile=QUICK)
    found = []
    with falls_back(network, "running the ops changes", "infer"):
        for place in range(6):
            if place == 2:
                op.factor = 2.0
            op.decays = place > 3
            found.append(network.run_step({"x": torch.ones(1)})["y"].item())
    assert found == [1, 1, 2, 2, 1, 0.5]


def test_number_that_becomes_an_integer_is_a_constant_then() -> None:
    weights = (0.5, 0.25, 0.125, 1, 0.3, 0.2)
    network = train(lambda loss, weight: loss * weight, weights, QUICK)
    assert fallbacks(network) == []


def test_number_is_an_input_in_each_phase_of_merging() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        loss = LambdaOp(cross_entropy, ["pred", "y"], "loss")
        weighted = Weighted(lambda loss, weight: loss * weight, 0.5)
        ops = [ModelOp(model, "x", "pred"), loss, weighted, UpdateOp(model, "loss", merge_grad=2)]
        return TorchNetwork(ops, compile=compile)

    def before(place: int, network: TorchNetwork) -> None:
        network.ops[2].weight = 0.5 + 0.01 * place

    assert captured(run_both(make, batches(16), before)) <= 4


@pytest.mark.parametrize("setting", [{"weight_decay": 0.5}, {"momentum": 0.9}, {"lr": 0.5}])
@pytest.mark.parametrize("scheduled", [False, True])
def test_setting_of_an_optimizer_that_changes_with_a_number(
    setting: dict[str, float], scheduled: bool
) -> None:
    """A decay that is a function changes in each step."""

    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        loss = LambdaOp(cross_entropy, ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, Weighted(lambda one, weight: one * weight, 0.5)]
        ema = [EMA(model, decay=lambda count: count / (count + 9.0))] if scheduled else []
        return TorchNetwork([*ops, UpdateOp(model, "loss"), *ema], compile=compile)

    def before(place: int, network: TorchNetwork) -> None:
        network.ops[2].weight = 0.5 + 0.01 * place
        if place == 6:
            network.models[0].current_optimizer.param_groups[0].update(setting)

    run_both(make, batches(10), before)


def test_phases_count_towards_the_limit_of_programs() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        loss = LambdaOp(cross_entropy, ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss", merge_grad=3)]
        return TorchNetwork(ops, dynamic=False, compile=compile)

    sizes = [5, 6] * 12
    data = [batches(1, size, place)[0] for place, size in enumerate(sizes)]
    options = CompileOptions(backend="eager", max_programs=1)
    network = run_both(make, data, compile=options)
    assert any("there are more than 1 input signatures" in one for one in fallbacks(network))
    assert len(network.traces) <= 5
