"""Captured steps of torch.distributions, whose checks of arguments read values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Independent,
    MultivariateNormal,
    Normal,
    Uniform,
    kl_divergence,
)

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    batches,
    built,
    captured,
    fallbacks,
    falls_back,
    mlp,
    run_both,
)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _checks_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `torch.compile` in the same process turns the default checks off for good."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def gaussian(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = -Normal(pred, pred.exp() + 0.1).log_prob(y[:, None].float()).mean()
    return loss


def policy(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    actions = Categorical(logits=pred)
    return -actions.log_prob(y).mean() - 0.01 * actions.entropy().mean()


def mixed(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    share = Beta(0.4, 0.4).sample()
    return share * (pred**2).mean() + (1 - share) * pred.abs().mean()


def sampled(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    own = Independent(Normal(pred, torch.ones_like(pred)), 1)
    prior = Independent(Normal(torch.zeros_like(pred), torch.ones_like(pred)), 1)
    noise = Uniform(-torch.ones_like(pred), torch.ones_like(pred)).sample()
    return ((own.rsample() + noise) ** 2).mean() + kl_divergence(own, prior).mean()


def simplex(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = -Dirichlet(pred.exp() + 0.1).log_prob(pred.softmax(-1).detach()).mean()
    return loss


def network_with(loss: Loss) -> Callable[[Any], TorchNetwork]:
    def make(compile: Any) -> TorchNetwork:
        model = built(mlp)
        ops = [ModelOp(model, "x", "pred"), LambdaOp(loss, ["pred", "y"], "loss", mode="!infer")]
        return TorchNetwork([*ops, UpdateOp(model, "loss")], compile=compile)

    return make


@pytest.mark.parametrize("loss", [gaussian, policy, mixed, sampled, simplex])
def test_default_checks_do_not_prevent_a_capture(loss: Loss) -> None:
    def seed(place: int, network: TorchNetwork) -> None:
        torch.manual_seed(place)

    assert captured(run_both(network_with(loss), batches(5), seed)) == 1


def test_explicit_check_runs_eagerly_until_the_advice_is_followed() -> None:
    def loss_with(checks: bool) -> Loss:
        def loss(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            own = Normal(pred, torch.ones_like(pred), validate_args=checks)
            value: torch.Tensor = -own.log_prob(y[:, None].float()).mean()
            return value

        return loss

    network = network_with(loss_with(True))(compile=True)
    with falls_back(network, "to check them; pass validate_args=False to the distribution"):
        for batch in batches(2):
            network.run_step(batch)
    assert captured(run_both(network_with(loss_with(False)), batches(3))) == 1


def test_check_that_a_class_asks_for_is_obeyed() -> None:
    class Checked(Normal):
        _validate_args = True

    def loss(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = -Checked(pred, torch.ones_like(pred)).log_prob(pred.detach()).mean()
        return value

    network = run_both(network_with(loss), batches(3))
    assert "pass validate_args=False" in fallbacks(network)[0]


def test_advice_for_a_matrix_that_is_checked() -> None:
    def loss_with(**checks: bool) -> Loss:
        def loss(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            own = MultivariateNormal(pred, torch.eye(3), **checks)
            value: torch.Tensor = -own.log_prob(y[:, None].float().expand(-1, 3)).mean()
            return value

        return loss

    network = run_both(network_with(loss_with()), batches(3))
    assert "pass validate_args=False" in fallbacks(network)[0]
    assert captured(run_both(network_with(loss_with(validate_args=False)), batches(3))) == 1


def test_other_threads_check_while_a_step_is_traced() -> None:
    """An invalid argument raises in the first step, which is eager, and in other threads."""
    errors: list[Exception] = []

    def check_elsewhere() -> None:
        try:
            Normal(torch.zeros(1), -torch.ones(1))
        except ValueError as error:
            errors.append(error)

    def loss(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=check_elsewhere)
        thread.start()
        thread.join()
        return gaussian(pred, y)

    network = network_with(loss)(compile=True)
    with network("train"):
        for batch in batches(2):
            network.run_step(batch)
    assert len(errors) >= 2

    def invalid(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = Normal(pred, y[:, None] - 5.0).log_prob(pred).mean()
        return value

    network = network_with(invalid)(compile=True)
    with network("train"), pytest.raises(ValueError, match="scale"):
        network.run_step(batches(1)[0])
