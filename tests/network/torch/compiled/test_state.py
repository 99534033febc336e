"""Ops that read the state of the step, and ops inside of other ops."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import QUICK, built, captured, falls_back


class Own(TensorOp):
    """Works out something by the state of the step."""

    def __init__(self, work: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__(inputs="x", outputs="x")
        self.work = work

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return self.work(data, state)


def _doubled(x: torch.Tensor, state: Any) -> torch.Tensor:
    return x * 2 if state["mode"] == "infer" else x


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(_doubled),
        lambda: Fuse([Repeat(Fuse([Own(_doubled)]), repeat=2), LambdaOp(abs, "x", "x")]),
    ],
)
def test_ops_inside_of_others_are_captured(make: Callable[[], Any]) -> None:
    network, eager = TorchNetwork([make()], compile=QUICK), TorchNetwork([make()])
    for epoch in range(1, 4):
        with network("infer", epoch), eager("infer", epoch):
            for place in range(3):
                batch = {"x": torch.arange(3.0) + place}
                assert torch.equal(network.run_step(batch)["x"], eager.run_step(batch)["x"])
    assert captured(network) == 1


class OwnModelOp(ModelOp):
    """Changes what fastnet's op returns."""

    def forward(self, data: torch.Tensor, state: Any) -> Any:
        return super().forward(data, state) * 2


@pytest.mark.parametrize("is_inside", [False, True])
def test_models_run_by_or_beside_user_ops_are_captured(is_inside: bool) -> None:
    model = built(lambda: nn.Linear(3, 3), seed=1)
    if is_inside:
        op: Any = Fuse([Own(_doubled), ModelOp(model, "x", "x")])
    else:
        op = OwnModelOp(model, "x", "x")
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(3):
            x = torch.arange(3.0).view(1, 3) + place
            expected = model(2 * x) if is_inside else 2 * model(x)
            torch.testing.assert_close(network.run_step({"x": x})["x"], expected.detach())
    assert captured(network) == 1


def _of_epoch(x: torch.Tensor, state: Any) -> torch.Tensor:
    return x * state["epoch"]


# It does not matter whose code reads the state on behalf of an op of the user.
_of_epoch_in_torch = types.FunctionType(_of_epoch.__code__, {"__name__": "torch.helper"})


@pytest.mark.parametrize(
    "work",
    [
        _of_epoch,
        _of_epoch_in_torch,
        lambda x, state: x * {**state}["epoch"],
        lambda x, state: x * (state | {})["epoch"],
        lambda x, state: x * state.setdefault("epoch", 1),
        lambda x, state: x * [*state.values()][[*state].index("epoch")],
    ],
)
def test_ops_that_read_the_epoch_run_eagerly(work: Callable[..., Any]) -> None:
    network = TorchNetwork([Fuse([Own(work)])], compile=QUICK)
    with falls_back(network, "reads the epoch, which a program would not do again", "infer"):
        network.run_step({"x": torch.ones(1)})
    for epoch in (2, 3):
        with network("infer", epoch):
            for _ in range(3):
                assert network.run_step({"x": torch.ones(1)})["x"].item() == epoch


def _counted(x: torch.Tensor, state: Any) -> torch.Tensor:
    state["calls"] = state.get("calls", 0) + 1
    return x * state["calls"]


def _popped(x: torch.Tensor, state: Any) -> torch.Tensor:
    calls = state.pop("calls", 0) + 1
    state.setdefault("calls", calls)
    return x * calls


@pytest.mark.parametrize("work", [_counted, _popped])
def test_counts_in_the_state_of_the_step_go_on(work: Callable[..., Any]) -> None:
    network, eager = (TorchNetwork([Own(work)], compile=one) for one in (QUICK, False))
    with falls_back(network, "state of the step", "infer"), eager("infer", 1):
        for _ in range(6):
            batch = {"x": torch.ones(1)}
            assert network.run_step(batch)["x"].item() == eager.run_step(batch)["x"].item()


def test_choices_that_are_drawn_run_eagerly() -> None:
    op = LambdaOp(lambda x: x + 1, "x", "x")
    network = TorchNetwork([Sometimes(op, 0.5)], compile=QUICK)
    with falls_back(network, "looks at the values of tensors", "infer"):
        found = {network.run_step({"x": torch.zeros(1)})["x"].item() for _ in range(60)}
    assert found == {0.0, 1.0}
    other = LambdaOp(lambda x: x - 1, "x", "x")
    network = TorchNetwork([OneOf(op, other)], compile=QUICK)
    with falls_back(network, "draws one of its ops outside of torch", "infer"):
        found = {network.run_step({"x": torch.zeros(1)})["x"].item() for _ in range(60)}
    assert found == {-1.0, 1.0}
