"""Interrupts: whatever raises them, the network is left and can be entered again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.network.context import Runner
from fastnet.op.tensorop import LambdaOp
from fastnet.schedule import Scheduler
from tests.network.programs import batches, built, is_free, mlp, no_gradients, supervised


def interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


class InterruptedOnce(Scheduler[Any]):
    """A scheduler of one op whose first use in an epoch is interrupted."""

    def __init__(self, op: Any) -> None:
        self.op, self.calls = op, 0

    def get_current_value(self, epoch: int) -> Any:
        self.calls += 1
        if self.calls == 2:  # the first call is from the network's constructor
            raise KeyboardInterrupt
        return self.op

    def get_all_values(self) -> list[Any]:
        return [self.op]


def in_an_op(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr(network.ops[1], "forward", interrupt)


def in_the_backward_pass(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", interrupt)
    monkeypatch.setattr(torch.autograd, "backward", interrupt)


def in_opening(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr(Runner, "step", interrupt)


def in_binding(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr("fastnet.network.torch.runner.TorchRunner.bind", interrupt)


def in_closing(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr("fastnet.network.torch.runner.TorchRunner.close", interrupt)


@pytest.mark.parametrize(
    "where", [in_an_op, in_the_backward_pass, in_opening, in_binding, in_closing]
)
def test_the_network_can_be_entered_again(
    where: Callable[[pytest.MonkeyPatch, TorchNetwork], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(mlp)
    network = fastnet.Network(supervised(model))
    (batch,) = batches(1)
    with monkeypatch.context() as patch:
        where(patch, network)
        with pytest.raises(KeyboardInterrupt), network("train"):
            network.run_step(batch)
    assert is_free(network)
    assert no_gradients(model) or where is in_closing
    with network("train"):
        assert "loss" in network.run_step(batch)


def test_a_scheduler_that_is_interrupted() -> None:
    network = TorchNetwork([InterruptedOnce(LambdaOp(lambda x: x + 1, "x", "y"))])
    assert isinstance(network.ops[0], InterruptedOnce)
    network.ops[0].calls = 1
    with pytest.raises(KeyboardInterrupt):
        network("infer")
    assert is_free(network)
    with network("infer"):
        assert network.run_step({"x": 1})["y"] == 2


def test_a_profile_that_is_interrupted() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    with pytest.raises(KeyboardInterrupt), fastnet.profile(network), network("infer"):
        interrupt()
    assert is_free(network)
    with fastnet.profile(network) as profile, network("infer"):
        network.run_step({"x": 1})
    assert profile.rows
