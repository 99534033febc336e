"""Interrupts: whatever raises them, the network is left and can be entered again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.programs import batches, built, is_free, mlp, no_gradients, supervised


def interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


def in_an_op(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr(network.ops[1], "forward", interrupt)


def in_the_backward_pass(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", interrupt)
    monkeypatch.setattr(torch.autograd, "backward", interrupt)


def in_binding(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr("fastnet.network.torch.runner.TorchRunner.bind", interrupt)


def in_closing(monkeypatch: pytest.MonkeyPatch, network: TorchNetwork) -> None:
    monkeypatch.setattr("fastnet.network.torch.runner.TorchRunner.close", interrupt)


@pytest.mark.parametrize("where", [in_an_op, in_the_backward_pass, in_binding, in_closing])
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


def test_a_profile_that_is_interrupted() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    with pytest.raises(KeyboardInterrupt), fastnet.profile(network), network("infer"):
        interrupt()
    assert is_free(network)
    with fastnet.profile(network) as profile, network("infer"):
        network.run_step({"x": 1})
    assert profile.rows
