"""What follows updates: schedulers of learning rates and averages of weights, in captured steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

from fastnet.backend import get_lr
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    assert_same_weights,
    batches,
    built,
    captured,
    cross_entropy,
    falls_back,
    run_both,
)

SCHEDULERS: dict[str, Any] = {
    "exponential": lambda one: lr_scheduler.ExponentialLR(one, 0.9),
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
    "warmup": lambda one: lr_scheduler.SequentialLR(
        one,
        [lr_scheduler.LinearLR(one, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(one, 20)],
        milestones=[5],
    ),
}


def _network(model: Any, *more: Any, compile: Any = QUICK, **settings: Any) -> TorchNetwork:
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss", **settings),
        *more,
    ]
    return TorchNetwork(ops, compile=compile)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_steps_after_each_update(name: str) -> None:
    pair = Pair(optimizer=OPTIMIZERS["adam"])
    scheduler = SCHEDULERS[name](pair.optimizer)
    pair.network = _network(pair.model, LRSchedule(pair.model, SCHEDULERS[name]))
    with pair.network("train", 1):
        for batch in batches(12):
            pair.step(batch)
            scheduler.step()
            assert get_lr(pair.model) == pair.optimizer.param_groups[0]["lr"]
    assert captured(pair.network) == 1
    pair.assert_same_weights()


@pytest.mark.parametrize("per", ["update", "epoch"])
@pytest.mark.parametrize("merge", [1, 3])
def test_schedulers_and_averages_beside_eager_steps(per: Any, merge: int) -> None:
    networks = []
    for compile in (QUICK, False):
        model = built(optimizer=OPTIMIZERS["momentum"])
        ema = EMA(model, decay=0.5, use_buffers=True)
        schedule = LRSchedule(model, SCHEDULERS["exponential"], per=per)
        networks.append(_network(model, ema, schedule, compile=compile, merge_grad=merge))
    network, eager = networks
    for epoch in range(1, 5):
        with network("train", epoch, eager=epoch == 3), eager("train", epoch):
            for batch in batches(7, seed=epoch):
                network.run_step(batch)
                eager.run_step(batch)
                assert get_lr(network.models[0]) == get_lr(eager.models[0])
        schedules = [each.ops[-1].state_dict()["schedulers"] for each in (network, eager)]
        assert schedules[0] == schedules[1]
        assert_same_weights(network.models[0], eager.models[0])
        assert_same_weights(network.ops[-2].averaged, eager.ops[-2].averaged)
    # nothing is compiled anew from epoch to epoch, or from rate to rate
    assert captured(network) == min(merge, 3)


def test_an_average_that_is_to_begin_anew_does() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built()
        ema = EMA(model, decay=0.9)
        return _network(model, ema, ModelOp(ema.averaged, "x", "averaged"), compile=compile)

    def before(place: int, network: TorchNetwork) -> None:
        if place == 5:
            ema = network.ops[3]
            ema.load_state_dict({**ema.state_dict(), "updates": 0})

    assert captured(run_both(make, batches(10), before)) >= 1


def test_a_scheduler_between_two_updates_runs_eagerly() -> None:
    model = built()
    ops = _network(model).ops + _network(model, LRSchedule(model, SCHEDULERS["exponential"])).ops
    network = TorchNetwork(ops, compile=QUICK)
    with falls_back(network, "steps a scheduler between several updates of a step"):
        for batch in batches(4):
            network.run_step(batch)
    assert get_lr(model) == pytest.approx(0.05 * 0.9**8)


@pytest.mark.parametrize("merge", [1, 3])
def test_a_decay_of_the_number_of_updates(merge: int) -> None:
    def decay(updates: int) -> float:
        assert type(updates) is int
        return updates / (2 + updates)

    def make(compile: Any) -> TorchNetwork:
        model = built(optimizer=OPTIMIZERS["adam"])
        ema = EMA(model, decay=decay, use_buffers=True)
        after = ModelOp(ema.averaged, "x", "averaged")
        return _network(model, ema, after, compile=compile, merge_grad=merge)

    network = run_both(make, batches(14))
    assert captured(network) == min(merge, 3)
    assert network.ops[3].state_dict()["updates"] == 14 // merge


def test_a_decay_that_becomes_a_function() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built()
        return _network(model, EMA(model, decay=0.5), compile=compile)

    networks = [make(QUICK), make(False)]
    for epoch in (1, 2):
        for network in networks:
            with network("train", epoch):
                for batch in batches(6):
                    network.run_step(batch)
            network.ops[-1].decay = lambda updates: updates / (2 + updates)
    assert_same_weights(*(network.ops[-1].averaged for network in networks))
    assert not any(trace.fallback for trace in networks[0].traces)


def test_a_decay_between_two_updates() -> None:
    """A constant is the same for both updates; a function gives each its own decay."""
    for decay, reason in ((0.5, None), (lambda updates: updates / (2 + updates), "changes its")):
        averages = []
        for compile in (QUICK, False):
            model = built()
            ema = EMA(model, decay=decay)
            ops = _network(model).ops + _network(model, ema).ops
            network = TorchNetwork(ops, compile=compile)
            context: Any = network("train", 1)
            if compile and reason:
                context = falls_back(network, f"{reason} decay between several updates of a step")
            with context:
                for batch in batches(4):
                    network.run_step(batch)
            assert ema.state_dict()["updates"] == 8
            averages.append(ema.averaged)
        assert_same_weights(*averages)


class Telling(TensorOp):
    """Tells the learning rate, by one of the ways that lead to it."""

    def __init__(self, model: Any, way: Any) -> None:
        super().__init__(outputs="rate")
        self.model = model
        self.way = way

    def forward(self, data: Any, state: Any) -> torch.Tensor:
        return torch.tensor(self.way(self.model))


@pytest.mark.parametrize(
    "way",
    [
        lambda model: model.current_optimizer.param_groups[0].get("lr"),
        lambda model: model.optimizer.state_dict()["param_groups"][0]["lr"],
        get_lr,
    ],
)
def test_the_rate_that_an_op_tells_is_never_an_old_one(way: Any) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    network = _network(model, Telling(model, way))
    with falls_back(network, "an op reads, or sets, the settings of an optimizer"):
        for place, batch in enumerate(batches(5)):
            model.optimizer.param_groups[0]["lr"] = 0.1 + place
            rate = network.run_step(batch)["rate"].item()
            assert rate == pytest.approx(0.1 + place)


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_what_an_op_reads_of_a_scheduler_or_another_optimizer_is_never_old() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    another = optim.SGD([weight], lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(another, 0.5)
    for way in (
        lambda _: another.param_groups[0]["lr"],
        lambda _: scheduler.get_last_lr()[0],
        lambda _: float(scheduler.last_epoch),
    ):
        network = TorchNetwork([Telling(None, way)], compile=QUICK)
        with network("infer", 1):
            for _ in range(12):
                assert network.run_step({"x": torch.ones(1)})["rate"].item() == way(None)
                another.step()
                scheduler.step()


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_an_op_that_steps_a_scheduler_itself_does_so_in_each_step() -> None:
    model = built()
    scheduler = lr_scheduler.ExponentialLR(model.optimizer, 0.5)

    def step_scheduler(x: torch.Tensor) -> torch.Tensor:
        scheduler.step()
        return x

    network = _network(model, LambdaOp(step_scheduler, "x", "x"))
    with falls_back(network, ""):
        for place, batch in enumerate(batches(5), 1):
            network.run_step(batch)
            assert get_lr(model) == pytest.approx(0.05 * 0.5**place)
            assert scheduler.last_epoch == place
