"""Where captured steps run: what is brought there and back, and what is refused elsewhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fastnet import CompileOptions
from fastnet._nest import NestMap
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled.fake_tensors import StepState
from fastnet.network.torch.compiled.step import never_captured
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.op.tensorop import Delete, LambdaOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    by_hand,
    captured,
    falls_back,
    network_of,
)

CPU, META = torch.device("cpu"), torch.device("meta")


class Brought(torch.Tensor):
    """A tensor that came out of a step."""


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have values copied on their way in and out, as those of another device are."""
    seen: list[str] = []
    own = TorchNetwork._step_options

    def move(tensor: torch.Tensor) -> torch.Tensor:
        seen.append("in")
        return tensor.clone()

    def release(tensor: torch.Tensor) -> torch.Tensor:
        seen.append("out")
        return tensor.detach().clone().as_subclass(Brought)

    def step_options(network: TorchNetwork) -> Any:
        found = own(network)
        return found._replace(
            move=NestMap(torch.Tensor, move), release=NestMap(torch.Tensor, release)
        )

    monkeypatch.setattr(TorchNetwork, "_step_options", step_options)
    return seen


def test_what_ops_read_is_brought_there_and_what_they_write_back(far: list[str]) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    network = network_of(model, CompileOptions("eager", verify=None))
    with network("train", 1):
        for place, batch in enumerate(batches(10)):
            given = {**batch, "unread": torch.ones(1), "name": "a"}
            far.clear()
            result = network.run_step(given)
            if place:
                assert far == ["in", "in", "out", "out"]
            assert result.keys() == {*given, "pred", "loss"}
            assert all(result[key] is value for key, value in given.items())
            assert type(result["loss"]) is type(result["pred"]) is Brought
            loss = by_hand(other, optimizer, batch)
            torch.testing.assert_close(result["loss"].as_subclass(torch.Tensor), loss)
    assert captured(network) == 1
    assert_same_weights(model, other)


def test_nests_and_keys_that_ops_write_anew_or_delete(far: list[str]) -> None:
    def double(nest: Any, x: torch.Tensor) -> Any:
        return {"deep": [nest["deep"][0] * 2]}, x + 1, x

    ops = [LambdaOp(double, ["nest", "x"], ["nest", "x", "same"]), Delete("gone")]
    network = TorchNetwork(ops, compile=QUICK)
    eager = TorchNetwork(ops)
    with network("infer", 1), eager("infer", 1):
        for place in range(4):
            x = torch.full((2,), float(place))
            batch = {"x": x, "nest": {"deep": [x + 1]}, "gone": x}
            found, expected = network.run_step(batch), eager.run_step(batch)
            assert found.keys() == expected.keys()
            assert torch.equal(found["x"], x + 1)
            assert torch.equal(found["same"], x)
            assert torch.equal(found["nest"]["deep"][0], (x + 1) * 2)
            assert type(found["nest"]["deep"][0]) is Brought
    assert captured(network) == 1


def test_batches_and_parameters_on_another_device() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")], compile=QUICK)
    with falls_back(
        network, "the batch's 'x' is a tensor of torch.float32, torch.strided, on meta", "infer"
    ):
        for _ in range(3):
            network.run_step({"x": torch.ones(2, device=META)})
    with pytest.raises(Uncapturable, match="a parameter or a buffer is on meta"):
        StepState([nn.Linear(2, 2, device=META)], False, CPU)
    with pytest.raises(Uncapturable, match="a parameter or a buffer is on cpu"):
        StepState([nn.Linear(2, 2)], False, META)


def test_what_optimizers_count_may_be_on_the_cpu_and_nothing_else_of_theirs() -> None:
    def model_with(name: str, make: Any) -> Any:
        model = built(lambda: nn.Linear(2, 2, device=META), OPTIMIZERS["adam"])
        for parameter in model.parameters():
            zeros = torch.zeros_like(parameter)
            state = {"exp_avg": zeros, "exp_avg_sq": zeros.clone(), "step": torch.zeros(())}
            model.optimizer.state[parameter] = {**state, name: make()}
        model.current_optimizer = model.optimizer
        return model

    state = StepState([model_with("step", lambda: torch.zeros(()))], True, META)
    assert sum(one.device == CPU for one in state.tensors) == 2
    with pytest.raises(Uncapturable, match="the state of an optimizer is on cpu"):
        StepState([model_with("exp_avg", lambda: torch.zeros(2, 2))], True, META)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_devices(kind: str) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")], compile=QUICK)
    with network("infer", 1):
        layout = network._context.plan
        for device in ("cpu", "cuda:0"):
            assert never_captured(layout, torch.device(device), False) is None
        assert never_captured(layout, torch.device(kind), False) == (
            f"the ops run on {kind}; steps are captured on the CPU and on CUDA only, so far"
        )
