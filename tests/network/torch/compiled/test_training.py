"""Captured steps give the weights of a hand-written loop and of eager steps, after any change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy, L2Regularization
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    assert_same_weights,
    batches,
    built,
    by_hand,
    captured,
    mlp,
    network_of,
    run_both,
)
from tests.network.torch.compiled.test_inductor import by_inductor


@pytest.mark.parametrize(
    "compile",
    [
        pytest.param(QUICK, id="eager"),
        pytest.param(
            CompileOptions(fallback_random=True),
            marks=[pytest.mark.slow, by_inductor],
            id="inductor",
        ),
    ],
)
def test_a_rate_that_is_set_counts_in_the_next_step_and_compiles_nothing(
    compile: CompileOptions,
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))

    pair = Pair(make, OPTIMIZERS["adam"], compile)
    with pair.network("train", 1):
        for place, batch in enumerate(batches(10)):
            for _, optimizer in pair.sides():
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + place)
                optimizer.param_groups[0]["betas"] = (0.8, 0.9) if place == 3 else (0.9, 0.999)
            torch.manual_seed(place)
            loss = pair.network.run_step(batch)["loss"]
            torch.manual_seed(place)
            expected = by_hand(pair.other, pair.optimizer, batch)
            torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


def test_a_scheduler_of_torch_counts_and_does_not_complain(recwarn: Any) -> None:
    pair = Pair()
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for _, optimizer in pair.sides()
    ]
    with pair.network("train", 1):
        for batch in batches(6):
            pair.step(batch)
            for scheduler in schedulers:
                scheduler.step()
    assert captured(pair.network) == 1
    assert [str(one.message) for one in recwarn if "scheduler" in str(one.message)] == []


_KEPT: dict[int, Any] = {}


def _load(place: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if place == 5:
        _KEPT[id(model)] = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    elif place == 9:
        for one, state in zip((model, optimizer), _KEPT.pop(id(model)), strict=True):
            one.load_state_dict(state)


def _freeze(place: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[0].requires_grad_(not 5 <= place < 9)


def _put_data(place: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    if place == 5:
        model[0].weight.data = torch.full((8, 6), 0.1)


def _forget(place: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    if place == 5:
        optimizer.state.clear()


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (_load, []),
        (_freeze, ["requires_grad"]),
        (_put_data, ["the storage"]),
        (_forget, []),
    ],
)
def test_changes_between_steps_count(change: Any, reasons: list[str]) -> None:
    pair = Pair(optimizer=OPTIMIZERS["adam"])
    with pair.network("train", 1):
        for place, batch in enumerate(batches(12)):
            for model, optimizer in pair.sides():
                change(place, model, optimizer)
            pair.step(batch)
    assert captured(pair.network) == 1 + len(reasons)
    for record, reason in zip(pair.network.traces[1:], reasons, strict=True):
        assert reason in record.reason
    pair.assert_same_weights()


def test_modes_in_turn_and_eager_steps_between_them() -> None:
    pair = Pair(optimizer=OPTIMIZERS["momentum"])
    for epoch in range(1, 5):
        with pair.network("train", epoch, eager=epoch == 3):
            for batch in batches(3, seed=epoch):
                pair.step(batch)
        assert pair.model.training
        for mode in ("eval", "infer"):
            with pair.network(mode, epoch), torch.no_grad():
                pair.other.eval()
                for batch in batches(2, seed=epoch + 9):
                    pred = pair.network.run_step(batch)["pred"]
                    torch.testing.assert_close(pred, pair.other(batch["x"]), rtol=1e-5, atol=1e-6)
                    assert not pred.requires_grad
            assert not pair.model.training
    # nothing is compiled anew from epoch to epoch
    assert captured(pair.network) == 3
    pair.assert_same_weights()


def _gan(compile: Any) -> TorchNetwork:
    torch.manual_seed(3)
    generator = build(lambda: nn.Linear(6, 6), optimizer_fn=OPTIMIZERS["adam"], model_name="g")
    critic = build(lambda: nn.Linear(6, 1), optimizer_fn=OPTIMIZERS["momentum"], model_name="d")
    return TorchNetwork(
        [
            ModelOp(generator, "x", "fake"),
            ModelOp(critic, "fake", "of_fake"),
            ModelOp(critic, "x", "of_real"),
            LambdaOp(lambda f: functional.softplus(-f).mean(), "of_fake", "g_loss"),
            LambdaOp(
                lambda f, r: (functional.softplus(f) + functional.softplus(-r)).mean(),
                ["of_fake", "of_real"],
                "d_loss",
            ),
            UpdateOp(generator, "g_loss"),
            UpdateOp(critic, "d_loss"),
        ],
        compile=compile,
    )


def _attacked(compile: Any) -> TorchNetwork:
    model = built(optimizer=OPTIMIZERS["adamw"])
    return TorchNetwork(
        [
            Watch("x"),
            ModelOp(model, "x", "pred"),
            CrossEntropy(["pred", "y"], "loss", from_logits=True, class_weights={1: 2.0}),
            GradientOp("loss", "slope", inputs="x"),
            FGSM("x", "loss", "bad"),
            ModelOp(model, "bad", "worse"),
            CrossEntropy(["worse", "y"], "hard", from_logits=True),
            L2Regularization("hard", "total", model),
            UpdateOp(model, "total"),
        ],
        compile=compile,
    )


@pytest.mark.parametrize("make", [_gan, _attacked])
def test_several_models_and_gradients_within_a_step(make: Callable[[Any], TorchNetwork]) -> None:
    assert captured(run_both(make, batches(12))) == 1


@pytest.mark.parametrize("caches", [True, False])
def test_weights_are_cast_once_a_step_as_autocast_does_it(caches: bool) -> None:
    """Ops after an update within the same step use the weights from before it."""

    def make(compile: Any) -> TorchNetwork:
        torch.manual_seed(0)
        model = build(mlp, optimizer_fn=OPTIMIZERS["sgd"], mixed_precision="bfloat16")
        ops = [
            ModelOp(model, "x", "pred"),
            CrossEntropy(["pred", "y"], "loss", from_logits=True),
            UpdateOp(model, "loss"),
            ModelOp(model, "x", "again"),
            CrossEntropy(["again", "y"], "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
        return TorchNetwork(ops, compile=compile)

    torch.set_autocast_cache_enabled(caches)
    try:
        assert captured(run_both(make, batches(12), rtol=2e-2, atol=1e-2)) == 1
    finally:
        torch.set_autocast_cache_enabled(True)


def test_a_batch_in_the_memory_of_a_weight_is_run_eagerly() -> None:
    model = built(lambda: nn.Linear(6, 3))
    other = built(lambda: nn.Linear(6, 3))
    networks = [network_of(model), network_of(other, False)]
    for network, own in zip(networks, (model, other), strict=True):
        with network("train", 1):
            for batch in batches(3):
                network.run_step(batch)
            network.run_step({"x": own.weight.detach(), "y": torch.tensor([0, 1, 2])})
            network.run_step(batches(1)[0])
    assert_same_weights(model, other)


def test_a_key_that_is_missing_is_told_as_ever() -> None:
    network = network_of(built())
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
        with pytest.raises(KeyError, match="'y'"):
            network.run_step({"x": torch.rand(5, 6)})
        network.run_step(batches(1)[0])
    assert captured(network) == 1


def test_a_model_of_another_type() -> None:
    def before(place: int, network: TorchNetwork) -> None:
        if place == 4:
            network.models[0].double()

    data = batches(8)
    data[4:] = [{**batch, "x": batch["x"].double()} for batch in data[4:]]
    network = run_both(lambda compile: network_of(built(), compile), data, before)
    assert captured(network) == 2
    assert network.models[0][0].weight.dtype == torch.float64
