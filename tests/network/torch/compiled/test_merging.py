"""Captured steps add gradients up as eager steps do, and share the count with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
from torch import nn

from fastnet import CompileOptions, build
from fastnet.backend.torch.update import Window
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled.accumulation import Accumulation
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.meta import Fuse, Repeat
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    captured,
    cross_entropy,
    falls_back,
    mlp,
    run_both,
)


def _network(compile: Any, merge: int = 3, name: str = "adam", **settings: Any) -> TorchNetwork:
    model = built(optimizer=OPTIMIZERS[name])
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss", merge_grad=merge, **settings),
    ]
    return TorchNetwork(ops, compile=compile)


@pytest.mark.parametrize(("merge", "name"), [(2, "sgd"), (4, "momentum")])
def test_merged_steps_are_those_of_an_eager_network(merge: int, name: str) -> None:
    network = run_both(lambda compile: _network(compile, merge, name), batches(24))
    # one that starts to add, one that adds, and one that updates
    assert captured(network) == min(merge, 3)
    assert all(one.grad is None for one in network.models[0].parameters())


def _assert_same_sums(one: UpdateOp, other: UpdateOp) -> None:
    left, right = one.state_dict(), other.state_dict()
    assert left["merged"] == right["merged"]
    for mine, theirs in zip(left["gradients"], right["gradients"], strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rest", ["carry", "flush", "drop"])
def test_the_count_is_shared_with_eager_steps(rest: Literal["carry", "flush", "drop"]) -> None:
    network, eager = (_network(compile, 3, rest=rest) for compile in (QUICK, False))
    for epoch in range(1, 6):
        with network("train", epoch, eager=epoch == 3), eager("train", epoch):
            for batch in batches(8, seed=epoch):
                found, wanted = network.run_step(batch), eager.run_step(batch)
                torch.testing.assert_close(found["loss"], wanted["loss"], rtol=1e-5, atol=1e-6)
                _assert_same_sums(network.ops[-1], eager.ops[-1])
        _assert_same_sums(network.ops[-1], eager.ops[-1])
        with network("eval", epoch):
            network.run_step(batches(1)[0])
    assert_same_weights(network.models[0], eager.models[0])
    # of each kind of step, and one for evaluation
    assert captured(network) == 4


def test_sums_that_are_loaded_and_layers_that_are_frozen_meanwhile_count() -> None:
    saved: dict[int, Any] = {}

    def before(place: int, network: TorchNetwork) -> None:
        update = network.ops[-1]
        if place == 10:
            saved[id(network)] = copy.deepcopy(update.state_dict())
        if place in (13, 19):
            update.load_state_dict(saved[id(network)])
        network.models[0][0].requires_grad_(not 22 <= place < 27)

    network = run_both(lambda compile: _network(compile, 4), batches(32), before)
    captured(network)


def test_two_models_that_merge_differently_reports_and_averages() -> None:
    def make(compile: Any) -> TorchNetwork:
        torch.manual_seed(0)
        one = build(mlp, OPTIMIZERS["adam"], model_name="one")
        two = build(lambda: nn.Linear(3, 3), OPTIMIZERS["momentum"], model_name="two")
        reports = {"stepped": "stepped", "grad_norm": "norm"}
        ema = EMA(one, decay=0.5)
        ops = [
            ModelOp(one, "x", "pred"),
            ModelOp(two, "pred", "second"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            LambdaOp(cross_entropy, ["second", "y"], "other"),
            UpdateOp(one, "loss", merge_grad=2, clip_norm=0.5, defer=True, outputs=reports),
            Fuse([UpdateOp(two, "other", merge_grad=3, defer=True)]),
            ema,
            ModelOp(ema.averaged, "x", "averaged"),
        ]
        return TorchNetwork(ops, compile=compile)

    captured(run_both(make, batches(18)))


def test_sums_are_apart_from_gradients_that_are_handed_out() -> None:
    def merged(graph: Any, examples: Any) -> Any:
        """Compile as one that gives one tensor for two that are copies of each other."""
        for node in list(graph.graph.nodes):
            if node.target is torch.ops.aten.clone.default:
                node.replace_all_uses_with(node.args[0])
        graph.recompile()
        return graph

    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built(lambda: nn.Linear(6, 3))
        ops = [
            ModelOp(model, "x", "pred"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            GradientOp("loss", "slopes", model=model),
            UpdateOp(model, "loss", gradients="slopes", merge_grad=3),
        ]
        return model, TorchNetwork(ops, compile=compile)

    model, network = make(CompileOptions(backend=merged))
    other, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(14):
            for each in (network, eager):
                for slope in each.run_step(batch)["slopes"]:
                    slope.zero_()
    captured(network)
    assert_same_weights(model, other)


class _Repeated(UpdateOp):
    """Merges several times a step."""

    times = 2

    def forward(self, data: Any, state: Any) -> Any:
        for _ in range(self.times):
            super().forward(data, state)


class _WholeWindow(_Repeated):
    times = 4  # The window is as long as before the step.


class _RunsUpdate(TensorOp):
    """Runs an update that is also an op of the network."""

    def __init__(self, update: UpdateOp) -> None:
        super().__init__(inputs="slopes", mode="train")
        self.update = update

    def forward(self, data: Any, state: Any) -> None:
        self.update.forward(data, state)


def _classifier(ends: Sequence[Any], model: Any, compile: Any) -> TorchNetwork:
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        GradientOp("loss", "slopes", model=model),
        *ends,
    ]
    return TorchNetwork(ops, compile=compile)


def _update(model: Any, kind: type[UpdateOp] = UpdateOp, merge: int = 3) -> UpdateOp:
    return kind(model, "loss", gradients="slopes", merge_grad=merge)


MERGING_TWICE: dict[str, Callable[[Any], Sequence[Any]]] = {
    "listed": lambda model: [_update(model)] * 2,
    "repeat": lambda model: [Repeat(_update(model), 2)],
    "repeat_while": lambda model: [Repeat(_update(model), lambda slopes: True, max_iter=2)],
    "fuse": lambda model: [Fuse([_update(model)] * 2)],
    "nested": lambda model: [Fuse([Repeat(Fuse([_update(model)]), 2)])],
    "forward": lambda model: [_update(model, _Repeated)],
    "whole_window": lambda model: [_update(model, _WholeWindow)],
    "another_op": lambda model: [update := _update(model), _RunsUpdate(update)],
}


@pytest.mark.parametrize("name", MERGING_TWICE)
def test_merging_several_times_a_step_runs_eagerly(name: str) -> None:
    ends = MERGING_TWICE[name]
    networks, models = [], []
    for compile in (CompileOptions(backend="eager", verify=None), False):
        models.append(built(lambda: nn.Linear(6, 3)))
        networks.append(_classifier(ends(models[-1]), models[-1], compile))
    network, eager = networks
    with falls_back(network, "merges gradients more than once a step"), eager("train", 1):
        for batch in batches(14):
            for each in (network, eager):
                each.run_step(batch)
    assert_same_weights(*models)


ONCE_A_STEP: dict[str, Callable[[Any], Sequence[Any]]] = {
    "two_updates": lambda model: [_update(model, merge=2), _update(model, merge=3)],
    "beside_plain": lambda model: [Fuse([_update(model, merge=3), _update(model, merge=1)])],
    "repeat_once": lambda model: [Repeat(_update(model), 1)],
}


@pytest.mark.parametrize("name", ONCE_A_STEP)
def test_updates_of_one_model_that_merge_once_a_step(name: str) -> None:
    ends = ONCE_A_STEP[name]
    network = run_both(
        lambda compile: _classifier(ends(model := built(lambda: nn.Linear(6, 3))), model, compile),
        batches(14),
        compile=CompileOptions(backend="eager", verify=None),
    )
    captured(network)


def test_sum_on_another_device_is_another_phase() -> None:
    # A loaded sum of integer weights is on the CPU, wherever the model is.
    update = UpdateOp(built(), "loss", merge_grad=3, weight="weight")
    accumulation = Accumulation([update])
    phases = []
    for device in ("cpu", "cpu", "meta"):
        update.updater().window = Window(1, {}, torch.ones((), dtype=torch.int64, device=device))
        phases.append(accumulation.phases())
    assert phases[0] == phases[1] != phases[2]
