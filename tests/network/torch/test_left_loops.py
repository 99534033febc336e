"""Loops over steps in torch that come to their loader's end, and such that are left before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import LRSchedule
from tests.network.programs import (
    Pipeline,
    batches,
    built,
    is_free,
    mlp,
    no_gradients,
    same_weights,
    sgd,
    supervised,
    twins,
)

WAYS: dict[str, Callable[[Any, Iterable[Any]], Iterable[Any]]] = {
    "steps": lambda network, data: fastnet.steps(network, data, "train"),
    "iter_transform": lambda network, data: network.iter_transform(data, "train"),
    "a pipeline": lambda network, data: network.iter_transform(Pipeline(data), "train"),
}

EPOCHS = ["exhausted", "islice"]
"""The ends of a loop that end the epoch."""

OTHERS = ["break", "error", "interrupt", "closed in a handler"]
"""The ends of a loop that leave the epoch early."""


def run_two(network: Any, data: list[Any], way: str, end: str) -> None:
    """Run the first two batches of several, and end the loop in one of `EPOCHS` or `OTHERS`."""
    loop = WAYS[way]
    if end == "exhausted":
        assert len(list(loop(network, data[:2]))) == 2
    elif end == "islice":
        assert len(list(loop(network, itertools.islice(data, 2)))) == 2
    elif end == "break":
        for number, _ in enumerate(loop(network, data)):
            if number == 1:
                break
    elif end == "closed in a handler":
        results: Any = iter(loop(network, data))
        next(results), next(results)
        with pytest.raises(ZeroDivisionError):
            _fail_and_close(results)
    else:
        kind = {"error": ZeroDivisionError, "interrupt": KeyboardInterrupt}[end]
        with pytest.raises(kind):
            _fail_in_body(loop(network, data), kind)


def _fail_in_body(results: Iterable[Any], kind: type[BaseException]) -> None:
    for number, _ in enumerate(results):
        if number == 1:
            raise kind


def _fail_and_close(results: Any) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        results.close()
        raise


def step_by_hand(twin: Any, data: list[Any]) -> None:
    optimizer = sgd()(twin.parameters())
    for batch in data:
        (cross_entropy(twin(batch["x"]), batch["t"]) / len(data)).backward()
    optimizer.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", EPOCHS + OTHERS)
def test_an_epochs_end_flushes_merged_gradients_and_steps_a_schedule(end: str, way: str) -> None:
    """A loop that is left early does neither, and the next one goes on with what was merged."""
    model, twin = twins(mlp)
    update = {"merge_grad": 3, "rest": "flush"}
    schedule = LRSchedule(built(model, sgd()), lambda one: ExponentialLR(one, 0.5), "epoch")
    network, data = TorchNetwork([*supervised(model, **update), schedule]), batches(4)
    run_two(network, data, way, end)
    assert is_free(network)
    assert no_gradients(model)
    if end in OTHERS:
        assert same_weights(model, twin)
        assert network.ops[2].state_dict()["merged"] == 2
        assert fastnet.backend.get_lr(model) == 0.1
        list(fastnet.steps(network, [data[2]], "train", 2))
    step_by_hand(twin, data[: 3 if end in OTHERS else 2])
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert network.ops[2].state_dict()["merged"] == 0
    assert fastnet.backend.get_lr(model) == 0.05
