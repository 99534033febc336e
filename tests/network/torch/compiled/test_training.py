"""Captured steps give the weights of a hand-written loop and of eager steps, after any change."""

from __future__ import annotations

import copy
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
    assert_same_weights,
    batches,
    built,
    by_hand,
    captured,
    mlp,
    network_of,
)
from tests.network.torch.compiled.test_inductor import by_inductor


@pytest.mark.parametrize(
    "compile",
    [
        pytest.param(QUICK, id="eager"),
        pytest.param(CompileOptions(fallback_random=True), marks=by_inductor, id="inductor"),
    ],
)
def test_a_rate_that_is_set_counts_in_the_next_step_and_compiles_nothing(
    compile: CompileOptions,
) -> None:
    model = built(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3)), OPTIMIZERS["adam"]
    )
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    network = network_of(model, compile)
    with network("train", 1):
        for place, batch in enumerate(batches(30)):
            for each in (model.current_optimizer, optimizer):
                each.param_groups[0]["lr"] = 0.01 / (1 + place)
                each.param_groups[0]["betas"] = (0.8, 0.9) if place % 7 == 3 else (0.9, 0.999)
            torch.manual_seed(place)
            loss = network.run_step(batch)["loss"]
            torch.manual_seed(place)
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6)
    assert captured(network) == 1
    assert_same_weights(model, other)


def test_a_scheduler_of_torch_counts_and_does_not_complain(recwarn: Any) -> None:
    model = built()
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](other.parameters())
    network = network_of(model)
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(one, 0.8)
        for one in (model.current_optimizer, optimizer)
    ]
    with network("train", 1):
        for batch in batches(12):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6)
            for scheduler in schedulers:
                scheduler.step()
    assert captured(network) == 1
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
    model = built(optimizer=OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    network = network_of(model)
    with network("train", 1):
        for place, batch in enumerate(batches(14)):
            change(place, model, model.current_optimizer)
            change(place, other, optimizer)
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6)
    assert captured(network) == 1 + len(reasons)
    for record, reason in zip(network.traces[1:], reasons, strict=True):
        assert reason in record.reason
    assert_same_weights(model, other)


def test_an_optimizer_that_is_replaced_counts() -> None:
    model = built()
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](other.parameters())
    network = network_of(model)
    for epoch in (1, 2):
        with network("train", epoch):
            for batch in batches(6, seed=epoch):
                loss = network.run_step(batch)["loss"]
                torch.testing.assert_close(
                    loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6
                )
        fresh = OPTIMIZERS["adam"](model.parameters())
        fresh.scaler = None  # type: ignore[attr-defined]
        model.optimizer = fresh
        optimizer = OPTIMIZERS["adam"](other.parameters())
    assert captured(network) == 2
    assert_same_weights(model, other)


def test_modes_in_turn_and_steps_op_by_op_between_them() -> None:
    model = built(optimizer=OPTIMIZERS["momentum"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["momentum"](other.parameters())
    network = network_of(model)
    for epoch in range(1, 5):
        with network("train", epoch, eager=epoch == 3):
            for batch in batches(4, seed=epoch):
                loss = network.run_step(batch)["loss"]
                torch.testing.assert_close(
                    loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6
                )
        assert model.training
        for mode in ("eval", "infer"):
            with network(mode, epoch):
                for batch in batches(3, seed=epoch + 9):
                    other.eval()
                    with torch.no_grad():
                        expected = other(batch["x"])
                    pred = network.run_step(batch)["pred"]
                    torch.testing.assert_close(pred, expected, rtol=1e-5, atol=1e-6)
                    assert not pred.requires_grad
            assert not model.training
    # nothing is compiled anew from epoch to epoch
    assert captured(network) == 3
    assert_same_weights(model, other)


def _gan(compile: Any) -> tuple[Any, Any, TorchNetwork]:
    torch.manual_seed(3)
    generator = build(lambda: nn.Linear(4, 6), optimizer_fn=OPTIMIZERS["adam"], model_name="g")
    critic = build(lambda: nn.Linear(6, 1), optimizer_fn=OPTIMIZERS["momentum"], model_name="d")
    network = TorchNetwork(
        [
            ModelOp(generator, "z", "fake"),
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
    return generator, critic, network


def test_two_models_against_each_other() -> None:
    generator, critic, network = _gan(QUICK)
    hand_g, hand_d = copy.deepcopy(generator), copy.deepcopy(critic)
    of_g = OPTIMIZERS["adam"](hand_g.parameters())
    of_d = OPTIMIZERS["momentum"](hand_d.parameters())
    with network("train", 1):
        for batch in batches(25):
            z = torch.randn(5, 4)
            result = network.run_step({**batch, "z": z})
            fake = hand_g(z)
            of_fake, of_real = hand_d(fake), hand_d(batch["x"])
            g_loss = functional.softplus(-of_fake).mean()
            d_loss = (functional.softplus(of_fake) + functional.softplus(-of_real)).mean()
            grads_g = torch.autograd.grad(g_loss, list(hand_g.parameters()), retain_graph=True)
            grads_d = torch.autograd.grad(d_loss, list(hand_d.parameters()))
            for model, grads, optimizer in ((hand_g, grads_g, of_g), (hand_d, grads_d, of_d)):
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.grad = grad
                optimizer.step()
            torch.testing.assert_close(result["g_loss"], g_loss.detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(result["d_loss"], d_loss.detach(), rtol=1e-5, atol=1e-6)
    assert captured(network) == 1
    assert_same_weights(generator, hand_g)
    assert_same_weights(critic, hand_d)


def test_gradients_within_a_step() -> None:
    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built(optimizer=OPTIMIZERS["adamw"])
        network = TorchNetwork(
            [
                Watch("x"),
                ModelOp(model, "x", "pred"),
                CrossEntropy(["pred", "y"], "loss", from_logits=True),
                GradientOp("loss", "slope", inputs="x"),
                FGSM("x", "loss", "bad"),
                ModelOp(model, "bad", "worse"),
                CrossEntropy(["worse", "y"], "hard", from_logits=True),
                L2Regularization("hard", "total", model),
                UpdateOp(model, "total"),
            ],
            compile=compile,
        )
        return model, network

    model, network = make(QUICK)
    other, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(15):
            result, expected = network.run_step(batch), eager.run_step(batch)
            assert result.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(result[key], value, rtol=1e-5, atol=1e-6, msg=key)
    assert captured(network) == 1
    assert_same_weights(model, other)


def test_mixed_precision_on_the_cpu() -> None:
    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        torch.manual_seed(0)
        model = build(mlp, optimizer_fn=OPTIMIZERS["sgd"], mixed_precision=True)
        return model, network_of(model, compile)

    model, network = make(QUICK)
    other, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(8):
            result, expected = network.run_step(batch), eager.run_step(batch)
            assert result["pred"].dtype == expected["pred"].dtype == torch.bfloat16
            torch.testing.assert_close(result["loss"], expected["loss"], rtol=2e-2, atol=1e-2)
    assert captured(network) == 1
    assert_same_weights(model, other, rtol=3e-2)


@pytest.mark.parametrize("caches", [True, False])
def test_weights_are_cast_once_a_step_as_autocast_does_it(caches: bool) -> None:
    """What runs after an update within the same step has the weights of before it."""
    found = []
    torch.set_autocast_cache_enabled(caches)
    try:
        for compile in (QUICK, False):
            torch.manual_seed(0)
            model = build(mlp, optimizer_fn=OPTIMIZERS["sgd"], mixed_precision="bfloat16")
            network = TorchNetwork(
                [
                    ModelOp(model, "x", "pred"),
                    CrossEntropy(["pred", "y"], "loss", from_logits=True),
                    UpdateOp(model, "loss"),
                    ModelOp(model, "x", "again"),
                    CrossEntropy(["again", "y"], "loss", from_logits=True),
                    UpdateOp(model, "loss"),
                ],
                compile=compile,
            )
            with network("train", 1):
                results = [network.run_step(batch) for batch in batches(20)]
            if compile:
                assert captured(network) == 1
            found.append((model, results))
    finally:
        torch.set_autocast_cache_enabled(True)
    (model, results), (other, expected) = found
    for own, one in zip(results, expected, strict=True):
        torch.testing.assert_close(own["again"], one["again"], rtol=1e-2, atol=1e-3)
    assert_same_weights(model, other)


def test_what_comes_back_of_the_batch_is_the_batchs_own() -> None:
    network = TorchNetwork(
        [LambdaOp(lambda x: x, "x", "same"), LambdaOp(lambda x: [x + 1, {"a": x}], "x", "nest")],
        compile=QUICK,
    )
    with network("infer", 1):
        for _ in range(3):
            batch = {"x": torch.rand(3), "name": object()}
            result = network.run_step(batch)
            assert result["same"] is batch["x"]
            assert result["name"] is batch["name"]
            assert result["nest"][1]["a"] is batch["x"]
            assert torch.equal(result["nest"][0], batch["x"] + 1)
    assert captured(network) == 1


def test_a_batch_in_the_memory_of_a_weight_is_run_op_by_op() -> None:
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
    model = built()
    other = copy.deepcopy(model)
    networks = [network_of(model), network_of(other, False)]
    for network, own in zip(networks, (model, other), strict=True):
        with network("train", 1):
            for place, batch in enumerate(batches(9)):
                if place == 4:
                    own.double()
                x = batch["x"].double() if place >= 4 else batch["x"]
                network.run_step({**batch, "x": x})
    assert captured(networks[0]) == 2
    assert model[0].weight.dtype == torch.float64
    assert_same_weights(model, other)
