"""Captured steps with scaled losses scale, pass over and go on as steps op by op do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fastnet import build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.captured.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    captured,
    cross_entropy,
    falls_back,
)


def _make(compile: Any, name: str, **settings: Any) -> tuple[Any, TorchNetwork]:
    torch.manual_seed(0)
    model = build(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        optimizer_fn=OPTIMIZERS[name],
        mixed_precision="float16",
    )
    model.optimizer.scaler.set_growth_interval(3)
    outputs: Any = {"stepped": "stepped", "grad_norm": "norm"}
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(lambda p, y, s: cross_entropy(p.float(), y) * s, ["pred", "y", "scale"], "loss"),
        UpdateOp(model, "loss", outputs=outputs, **settings),
    ]
    return model, TorchNetwork(ops, compile=compile)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.5}, {"merge_grad": 3}])
def test_steps_that_overflow_are_passed_over(name: str, settings: dict[str, Any]) -> None:
    model, network = _make(QUICK, name, **settings)
    other, eager = _make(False, name, **settings)
    stepped = []
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(100)):
            # the first step too: optimizers remember nothing then
            scale = float("inf") if place in (0, 1, 20, 41, 42) else 1e6 if place == 60 else 1.0
            batch = {**batch, "scale": torch.tensor(scale)}
            found, expected = network.run_step(batch), eager.run_step(batch)
            assert bool(found["stepped"]) == bool(expected["stepped"])
            stepped.append(bool(found["stepped"]))
            torch.testing.assert_close(
                found["norm"], expected["norm"], rtol=2e-2, atol=1e-3, equal_nan=True
            )
            # the scale, the count, and what both go by
            own = model.optimizer.scaler.state_dict()
            assert own == other.optimizer.scaler.state_dict()
    assert captured(network) == min(settings.get("merge_grad", 1), 3)
    assert True in stepped
    assert False in stepped
    assert_same_weights(model, other, rtol=2e-2)
    own = model.optimizer.state_dict()["state"]
    for place, state in other.optimizer.state_dict()["state"].items():
        if "step" in state:
            assert own[place]["step"] == state["step"]


def test_a_step_is_that_of_the_loop_by_hand() -> None:
    model, network = _make(QUICK, "adam")
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    with network("train", 1):
        for place, batch in enumerate(batches(30)):
            scale = torch.tensor(float("nan") if place % 7 == 6 else 1.0)
            network.run_step({**batch, "scale": scale})
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(other(batch["x"]).float(), batch["y"]) * scale
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert model.optimizer.scaler.get_scale() == scaler.get_scale()
    assert captured(network) == 1
    assert_same_weights(model, other, rtol=1e-2)


def test_a_scaler_that_is_written_to_counts_in_the_next_step() -> None:
    model, network = _make(QUICK, "momentum")
    other, eager = _make(False, "momentum")
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(40)):
            for one in (model, other):
                if place == 8:
                    one.optimizer.scaler.update(new_scale=1024.0)
                if place == 12:
                    one.optimizer.scaler.set_growth_factor(4.0)
                    one.optimizer.scaler.set_growth_interval(2)
                if place == 20:
                    kept = one.optimizer.scaler.state_dict()
                    one.optimizer.scaler.load_state_dict({**kept, "scale": 8.0})
                if place == 30:
                    one.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            batch = {**batch, "scale": torch.tensor(1.0)}
            network.run_step(batch)
            eager.run_step(batch)
            assert model.optimizer.scaler.state_dict() == other.optimizer.scaler.state_dict()
    # and once more for another scaler
    assert captured(network) == 2
    assert_same_weights(model, other, rtol=1e-2)


def test_what_follows_updates_that_may_be_passed_over_runs_op_by_op() -> None:
    model, network = _make(QUICK, "adam")
    network = TorchNetwork([*network.ops, EMA(model, 0.5)], compile=QUICK)
    with falls_back(network, "follows updates that a scaler of the loss may pass over"):
        for batch in batches(4):
            network.run_step({**batch, "scale": torch.tensor(1.0)})


class Own(torch.amp.GradScaler):
    """A scaler of the program's own."""


def test_other_scalers_run_op_by_op_with_the_reason() -> None:
    for scaler, reason in (
        (Own("cpu"), "the loss is scaled by a Own"),
        (torch.amp.GradScaler("cpu", enabled=False), "scaler that is not enabled"),
    ):
        model, network = _make(QUICK, "sgd")
        model.optimizer.scaler = scaler
        with falls_back(network, reason):
            for batch in batches(4):
                network.run_step({**batch, "scale": torch.tensor(1.0)})
