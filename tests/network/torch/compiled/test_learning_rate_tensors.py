"""Captured steps of optimizers whose learning rate is a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import LRSchedule
from tests.network.torch.compiled.steps import (
    Pair,
    batches,
    built,
    captured,
    mlp,
    network_of,
    run_both,
)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=torch.tensor(1e-2))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=torch.tensor(0.05), momentum=0.9)


@pytest.mark.parametrize("optimizer", [adam, sgd])
def test_tensor_that_is_filled_in_place_is_read_in_each_step(optimizer: Any) -> None:
    pair = Pair(optimizer=optimizer)
    with pair.network("train"):
        for number, batch in enumerate(batches(6)):
            for _, each in pair.sides():
                each.param_groups[0]["lr"].fill_(0.05 / (number + 1))
            pair.step(batch)
    pair.assert_same_weights()
    assert captured(pair.network) == 1


def test_float_in_place_of_a_tensor_makes_another_program() -> None:
    pair = Pair(optimizer=adam)
    with pair.network("train"):
        for number, batch in enumerate(batches(8)):
            for _, each in pair.sides():
                group = each.param_groups[0]
                if number == 3:
                    group["lr"] = 0.5
                elif number == 5:
                    group["lr"] = torch.tensor(0.5)
                elif number == 7:
                    group["lr"].fill_(0.01)
            pair.step(batch)
    pair.assert_same_weights()


def test_schedule_of_a_tensor() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(mlp, adam)
        network = network_of(model, compile)
        network.ops.append(
            LRSchedule(model, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))
        )
        return network

    assert captured(run_both(make, batches(6))) == 1
