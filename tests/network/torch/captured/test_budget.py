"""A step that may hold less memory holds less, and does the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bench.memory import most_memory
from fastnet import CompileOptions
from tests.network.torch.captured.steps import (
    OPTIMIZERS,
    assert_same_weights,
    built,
    by_hand,
    captured,
    network_of,
)
from tests.network.torch.captured.test_inductor import by_inductor


def deep() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(6)]
    return nn.Sequential(nn.Linear(6, 64), *layers, nn.Linear(64, 3))


def mixed() -> nn.Module:
    """Draw random numbers, and keep statistics, on the way forward."""
    layers = [
        nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.SiLU(), nn.Dropout(0.3))
        for _ in range(3)
    ]
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 1),
        *layers,
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def data(count: int, size: int = 256) -> list[dict[str, torch.Tensor]]:
    source = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(size, 6, generator=source),
            "y": torch.randint(0, 3, (size,), generator=source),
        }
        for _ in range(count)
    ]


def trained(make: Callable[[], nn.Module], budget: float, backend: str) -> tuple[Any, int]:
    model = built(make, OPTIMIZERS["adam"])
    options = CompileOptions(backend=backend, fallback_random=True, memory_budget=budget)
    network = network_of(model, options)
    torch.manual_seed(3)
    *batches, last = data(6)
    with network("train", 1):
        for batch in batches:
            network.run_step(batch)
        memory = most_memory(lambda: network.run_step(last))
    assert captured(network) == 1
    return model, memory


@pytest.mark.parametrize("make", [deep, mixed])
@pytest.mark.parametrize("budget", [0.5, 0.0])
def test_less_memory_and_the_very_same_weights(
    make: Callable[[], nn.Module], budget: float
) -> None:
    model, memory = trained(make, budget, "eager")
    other, usual = trained(make, 1.0, "eager")
    for own, expected in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(own, expected)
    assert memory < (0.65 if make is deep else 0.95) * usual


@by_inductor
@pytest.mark.slow
def test_what_inductor_compiles_takes_less_memory_too() -> None:
    model, memory = trained(deep, 0.3, "inductor")
    other, usual = trained(deep, 1.0, "inductor")
    assert_same_weights(model, other)
    assert memory < 0.8 * usual


def test_is_the_loop_by_hand_for_batches_of_any_size() -> None:
    model = built(deep, OPTIMIZERS["momentum"])
    twin = copy.deepcopy(model)
    optimizer = OPTIMIZERS["momentum"](twin.parameters())
    network = network_of(model, CompileOptions(backend="eager", memory_budget=0.2))
    with network("train", 1):
        for size in (8, 8, 5, 7, 12, 3):
            (batch,) = data(1, size)
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(twin, optimizer, batch))
    assert_same_weights(model, twin)
    assert captured(network) == 2
