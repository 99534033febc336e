"""Captured steps with scaled losses scale, pass over and go on as steps op by op do."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fastnet import build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
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


def _pair(compile: Any, shared: bool, kind: str, **settings: Any) -> tuple[list[Any], TorchNetwork]:
    """Make two models with losses of their own, and perhaps one scaler for both."""
    torch.manual_seed(0)
    models: list[Any] = [
        build(
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
            optimizer_fn=OPTIMIZERS[name],
            mixed_precision="float16",
            model_name=name,
        )
        for name in ("adam", "momentum")
    ]
    for model in models:
        model.optimizer.scaler.set_growth_interval(5)
    if shared:
        models[1].optimizer.scaler = models[0].optimizer.scaler
    forward: list[Any] = [ModelOp(models[0], "x", "a"), ModelOp(models[1], "x", "b")]
    loss = LambdaOp(_loss_of_one, ["a", "y", "one"], "la")
    # of both models, of which each has an update of its own
    losses = LambdaOp(_loss_of_both, ["a", "b", "y", "other"], "lb")
    outputs: Any = [{"stepped": f"stepped {one}", "grad_norm": f"norm {one}"} for one in "ab"]
    updates = [
        UpdateOp(models[0], "la", **settings),
        UpdateOp(models[1], "lb", **{**settings, "outputs": outputs[1]}),
    ]
    ops = {
        "waiting": [*forward, loss, losses, *updates],
        "at once": [forward[0], loss, updates[0], *forward, losses, updates[1], loss],
        "first waits": [
            *forward,
            *(loss, losses, UpdateOp(models[0], "la", defer=True, **settings)),
            *(updates[1], ModelOp(models[1], "x", "b")),
        ],
    }
    return models, TorchNetwork(ops[kind], compile=compile)


def _loss_of_one(a: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return cross_entropy(a.float(), y) * scale


def _loss_of_both(
    a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    return cross_entropy(a.float() + b.float(), y) * scale


def _for_pairs(count: int) -> list[dict[str, torch.Tensor]]:
    """Give batches by which one loss overflows, or the other, or both."""
    found = []
    for place, batch in enumerate(batches(count)):
        one = torch.tensor(float("inf") if place in (0, 9, 17, 18, 26) else 1.0)
        other = torch.tensor(float("nan") if place in (1, 12, 18, 27) else 1.0)
        found.append({**batch, "one": one, "other": other})
    return found


@pytest.mark.parametrize(
    ("shared", "kind", "settings"),
    [
        *((True, kind, {}) for kind in ("waiting", "at once", "first waits")),
        *((True, kind, {"clip_norm": 0.5}) for kind in ("waiting", "at once")),
        *((True, kind, {"merge_grad": 3}) for kind in ("waiting", "at once", "first waits")),
        (False, "waiting", {}),
        (False, "at once", {"clip_norm": 0.5}),
        (False, "first waits", {"merge_grad": 3}),
    ],
)
def test_pairs_of_models(shared: bool, kind: str, settings: dict[str, Any]) -> None:
    count = 30 * settings.get("merge_grad", 1)
    models, network = _pair(QUICK, shared, kind, **settings)
    others, eager = _pair(False, shared, kind, **settings)
    stepped, scales = [], set()
    with network("train", 1), eager("train", 1):
        for batch in _for_pairs(count):
            found, expected = network.run_step(batch), eager.run_step(batch)
            assert bool(found["stepped b"]) == bool(expected["stepped b"])
            torch.testing.assert_close(
                found["norm b"], expected["norm b"], rtol=1e-4, atol=1e-5, equal_nan=True
            )
            stepped.append(bool(found["stepped b"]))
            for model, other in zip(models, others, strict=True):
                assert model.optimizer.scaler.state_dict() == other.optimizer.scaler.state_dict()
            scales.add(models[0].optimizer.scaler.get_scale())
    assert captured(network) == settings.get("merge_grad", 1)
    assert True in stepped
    assert False in stepped
    # it went down, and up again
    assert len(scales) > 2
    for model, other in zip(models, others, strict=True):
        assert_same_weights(model, other, rtol=1e-4)
        own = model.optimizer.state_dict()["state"]
        for place, state in other.optimizer.state_dict()["state"].items():
            assert own[place].keys() == state.keys()
            assert own[place].get("step") == state.get("step")


@pytest.mark.parametrize("compile", [QUICK, pytest.param(True, marks=pytest.mark.slow)])
def test_a_pair_with_one_scaler_is_the_loop_by_hand(compile: Any) -> None:
    models, network = _pair(compile, True, "waiting")
    twins = copy.deepcopy(models)
    optimizers = [
        OPTIMIZERS[one](twin.parameters())
        for one, twin in zip(("adam", "momentum"), twins, strict=True)
    ]
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    with network("train", 1):
        for batch in _for_pairs(30):
            network.run_step(batch)
            with torch.autocast("cpu", torch.float16):
                one, other = (twin(batch["x"]) for twin in twins)
                loss = _loss_of_one(one, batch["y"], batch["one"])
                both = _loss_of_both(one.detach(), other, batch["y"], batch["other"])
            scaler.scale(loss).backward()
            scaler.scale(both).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            assert models[1].optimizer.scaler.state_dict() == scaler.state_dict()
    assert captured(network) == 1
    # Inductor rounds to half precision less often
    of_largest = 0.01 if compile is True else 0.0
    for model, twin in zip(models, twins, strict=True):
        assert_same_weights(model, twin, rtol=1e-4, of_largest=of_largest)


def test_a_scaler_of_a_pair_that_is_written_to() -> None:
    models, network = _pair(QUICK, True, "waiting")
    others, eager = _pair(False, True, "waiting")
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(_for_pairs(40)):
            for one, two in (models, others):
                scaler = two.optimizer.scaler
                if place == 4:
                    scaler.update(new_scale=1024.0)
                if place == 7:
                    scaler.update(torch.tensor(64.0))
                if place == 11:
                    scaler.set_backoff_factor(0.25)
                if place == 15:
                    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
                if place == 20:
                    # makes other tensors of what the optimizer remembers
                    one.optimizer.load_state_dict(one.optimizer.state_dict())
                if place == 25:
                    two.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
                if place == 30:
                    one.optimizer.scaler = two.optimizer.scaler
            network.run_step(batch)
            eager.run_step(batch)
            for model, other in zip(models, others, strict=True):
                assert model.optimizer.scaler.state_dict() == other.optimizer.scaler.state_dict()
    # the first, and one for each time that another scaler is there
    assert captured(network) == 3
    for model, other in zip(models, others, strict=True):
        assert_same_weights(model, other, rtol=1e-4)


def test_what_a_scaler_has_seen_of_other_gradients_counts_in_the_next_update() -> None:
    scales = []
    for compile in (QUICK, False):
        model, network = _make(compile, "momentum")
        beside = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(beside.parameters(), lr=0.1)
        with network("train", 1):
            for place, batch in enumerate(batches(20)):
                if place in (8, 13):
                    scaler = model.optimizer.scaler
                    loss = beside(torch.ones(1, 2)).sum() * (float("inf") if place == 8 else 1.0)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                network.run_step({**batch, "scale": torch.tensor(1.0)})
                scales.append(model.optimizer.scaler.state_dict())
        if compile:
            assert captured(network) == 1
    assert scales[:20] == scales[20:]
    assert scales[8]["scale"] < scales[7]["scale"]


def test_ops_that_scale_by_hand_update_once_for_all_optimizers() -> None:
    class ByHand(TensorOp):
        """Takes two optimizers' steps as the documentation of torch has it."""

        def __init__(self, models: list[Any], updates: bool = True) -> None:
            super().__init__(["la", "lb"], "done")
            self.models = models
            self.updates = updates

        def forward(self, data: Any, state: Any) -> Any:
            scaler = self.models[0].optimizer.scaler
            for loss in data:
                scaler.scale(loss).backward(retain_graph=True)
            scaler.unscale_(self.models[1].optimizer)
            for model in self.models:
                scaler.step(model.optimizer)
            if self.updates:
                scaler.update()
            for model in self.models:
                model.optimizer.zero_grad()
            return torch.zeros(())

    made = []
    for compile in (QUICK, False):
        models, network = _pair(compile, True, "waiting")
        ops = [*network.ops[:4], ByHand(models), *network.ops[4:]]
        made.append((models, TorchNetwork(ops, compile=compile)))
    (models, network), (others, eager) = made
    with network("train", 1), eager("train", 1):
        for batch in _for_pairs(30):
            network.run_step(batch)
            eager.run_step(batch)
            own = models[0].optimizer.scaler.state_dict()
            assert own == others[0].optimizer.scaler.state_dict()
    assert captured(network) == 1
    for model, other in zip(models, others, strict=True):
        assert_same_weights(model, other, rtol=1e-4)


def test_what_follows_updates_that_may_be_passed_over_runs_op_by_op() -> None:
    model, network = _make(QUICK, "adam")
    network = TorchNetwork([*network.ops, EMA(model, 0.5)], compile=QUICK)
    with falls_back(network, "follows updates that a scaler of the loss may pass over"):
        for batch in batches(4):
            network.run_step({**batch, "scale": torch.tensor(1.0)})


class Own(torch.amp.GradScaler):
    """A scaler of the program's own."""


def _replaced() -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu")
    vars(scaler)["update"] = partial(torch.amp.GradScaler.update, scaler)
    return scaler


def test_other_scalers_run_op_by_op_with_the_reason() -> None:
    for scaler, reason in (
        (Own("cpu"), "the loss is scaled by a Own"),
        (torch.amp.GradScaler("cpu", enabled=False), "scaler that is not enabled"),
        (_replaced(), "`update` of the scaler of the loss was replaced"),
    ):
        model, network = _make(QUICK, "sgd")
        model.optimizer.scaler = scaler
        with falls_back(network, reason):
            for batch in batches(4):
                network.run_step({**batch, "scale": torch.tensor(1.0)})
