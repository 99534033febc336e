"""Captured steps add gradients up as eager steps do, and share the count with them."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    captured,
    cross_entropy,
    mlp,
)


def _network(
    compile: Any, merge: int = 3, name: str = "adam", **settings: Any
) -> tuple[Any, UpdateOp, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS[name])
    update = UpdateOp(model, "loss", merge_grad=merge, **settings)
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        update,
    ]
    return model, update, TorchNetwork(ops, compile=compile)


@pytest.mark.parametrize(("merge", "name"), [(2, "sgd"), (3, "adam"), (4, "momentum")])
def test_a_hundred_steps_are_those_of_the_loop_by_hand(merge: int, name: str) -> None:
    model, _, network = _network(QUICK, merge, name)
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](other.parameters())
    other.train()
    with network("train", 1):
        for place, batch in enumerate(batches(100)):
            found = network.run_step(batch)["loss"]
            loss = functional.cross_entropy(other(batch["x"]), batch["y"])
            (loss / merge).backward()
            if place % merge == merge - 1:
                optimizer.step()
                optimizer.zero_grad()
            torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=1e-6)
    # that begins to add up, that adds, that updates
    assert captured(network) == min(merge, 3)
    assert_same_weights(model, other)
    assert all(one.grad is None for one in model.parameters())


def _assert_same_sums(one: UpdateOp, other: UpdateOp) -> None:
    left, right = one.state_dict(), other.state_dict()
    assert left["merged"] == right["merged"]
    for mine, theirs in zip(left["gradients"], right["gradients"], strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rest", ["carry", "flush", "drop"])
def test_the_count_is_shared_with_steps_op_by_op(rest: Literal["carry", "flush", "drop"]) -> None:
    model, update, network = _network(QUICK, 3, rest=rest)
    other, expected, eager = _network(False, 3, rest=rest)
    for epoch in range(1, 14):
        eagerly = epoch % 4 == 3
        with network("train", epoch, eager=eagerly), eager("train", epoch):
            for batch in batches(8, seed=epoch):
                found, wanted = network.run_step(batch), eager.run_step(batch)
                torch.testing.assert_close(found["loss"], wanted["loss"], rtol=1e-5, atol=1e-6)
                _assert_same_sums(update, expected)
        _assert_same_sums(update, expected)
        with network("eval", epoch), eager("eval", epoch):
            network.run_step(batches(1)[0])
            eager.run_step(batches(1)[0])
    assert_same_weights(model, other)
    # of each kind of step, and one for evaluation
    assert captured(network) == 4


def test_sums_that_are_loaded_count() -> None:
    model, update, network = _network(QUICK, 4)
    other, expected, eager = _network(False, 4)
    kept: list[Any] = []
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(30)):
            if place == 10:
                kept = copy.deepcopy([update.state_dict(), expected.state_dict()])
            if place in (13, 20):
                for op, state in zip((update, expected), kept, strict=True):
                    op.load_state_dict(state)
            network.run_step(batch)
            eager.run_step(batch)
            _assert_same_sums(update, expected)
    captured(network)
    assert_same_weights(model, other)


def test_layers_are_frozen_while_gradients_are_added_up() -> None:
    model, update, network = _network(QUICK, 3)
    other, expected, eager = _network(False, 3)
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(40)):
            for each in (model, other):
                each[0].requires_grad_(not 10 <= place < 20)
            network.run_step(batch)
            eager.run_step(batch)
            assert update.state_dict()["merged"] == expected.state_dict()["merged"]
    captured(network)
    assert_same_weights(model, other)


def test_two_models_that_merge_differently_reports_and_averages() -> None:
    def make(compile: Any) -> tuple[Any, Any, EMA, TorchNetwork]:
        torch.manual_seed(0)
        one = build(mlp, OPTIMIZERS["adam"], model_name="one")
        two = build(lambda: nn.Linear(3, 3), OPTIMIZERS["momentum"], model_name="two")
        ema = EMA(one, decay=0.5)
        ops = [
            ModelOp(one, "x", "pred"),
            ModelOp(two, "pred", "second"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            LambdaOp(cross_entropy, ["second", "y"], "other"),
            UpdateOp(
                one,
                "loss",
                merge_grad=2,
                clip_norm=0.5,
                outputs={"stepped": "stepped", "grad_norm": "norm"},
            ),
            UpdateOp(two, "other", merge_grad=3, defer=True),
            ema,
        ]
        return one, two, ema, TorchNetwork(ops, compile=compile)

    *models, ema, network = make(QUICK)
    *others, averaged, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(36):
            found, expected = network.run_step(batch), eager.run_step(batch)
            for key in ("loss", "other", "stepped", "norm"):
                torch.testing.assert_close(
                    found[key], expected[key], rtol=1e-4, atol=1e-6, equal_nan=True
                )
    captured(network)
    for one, other in zip(models, others, strict=True):
        assert_same_weights(one, other)
    assert_same_weights(ema.averaged, averaged.averaged)


def test_sums_are_apart_from_gradients_that_are_handed_out() -> None:
    def merged(graph: Any, examples: Any) -> Any:
        """Compile as one that gives one tensor for two that are copies of each other."""
        for node in list(graph.graph.nodes):
            if node.target is torch.ops.aten.clone.default:
                node.replace_all_uses_with(node.args[0])
        graph.recompile()
        return graph

    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built(lambda: nn.Linear(6, 3))
        ops = [
            ModelOp(model, "x", "pred"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            GradientOp("loss", "slopes", model=model),
            UpdateOp(model, "loss", gradients="slopes", merge_grad=3),
        ]
        return model, TorchNetwork(ops, compile=compile)

    model, network = make(CompileOptions(backend=merged))
    other, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(14):
            for each in (network, eager):
                for slope in each.run_step(batch)["slopes"]:
                    slope.zero_()
    captured(network)
    assert_same_weights(model, other)


def test_an_update_inside_of_another_op() -> None:
    from fastnet.op.tensorop.meta import Fuse

    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built()
        inner = [
            ModelOp(model, "x", "pred", mode="train"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss", mode="train"),
            UpdateOp(model, "loss", merge_grad=2),
        ]
        return model, TorchNetwork([Fuse(inner)], compile=compile)

    model, network = make(QUICK)
    other, eager = make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(10):
            network.run_step(batch)
            eager.run_step(batch)
    captured(network)
    assert_same_weights(model, other)
