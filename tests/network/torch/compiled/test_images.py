"""Convolutions and pooling that Inductor has compiled, in a process that compiles nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.network.torch.compiled.steps import (
    assert_same_weights,
    built,
    by_hand,
    captured,
    network_of,
)
from tests.network.torch.compiled.test_inductor import by_inductor

pytestmark = [pytest.mark.slow, pytest.mark.own_process]


def images(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return {
        "x": torch.randn(size, 1, 12, 12, generator=generator),
        "y": torch.randint(0, 3, (size,), generator=generator),
    }


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


@by_inductor
def test_trains_as_the_loop_by_hand_and_infers_as_the_model() -> None:
    model = built(layers, sgd)
    other = copy.deepcopy(model)
    optimizer = sgd(other.parameters())
    network = network_of(model, True)
    batch = images(8)
    with network("train", 1):
        for _ in range(30):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6)
    assert captured(network) == 1
    assert_same_weights(model, other)
    with network("infer", 1):
        for _ in range(3):
            pred = network.run_step(batch)["pred"]
    with torch.no_grad():
        torch.testing.assert_close(pred, other.eval()(batch["x"]), rtol=1e-4, atol=1e-5)
    assert captured(network) == 2
