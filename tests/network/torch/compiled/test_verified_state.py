"""Verification only observes: it works on copies of what a program writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    batches,
    built,
    captured,
    falls_back,
    mlp,
    network_of,
    run_both,
)

CHECKED = CompileOptions("eager", verify=1)


class Masked(nn.Module):
    """Multiplies by a mask that is one row, seen by all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0]).expand(5, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.mask


def test_expanded_buffer() -> None:
    pair = Pair(Masked, compile=CHECKED)
    with pair.network("train", 1):
        for batch in batches(4):
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


def _prototypes(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return torch.linspace(-1, 1, 3)


def _mapped(folder: Path) -> torch.Tensor:
    np.linspace(-1, 1, 3, dtype=np.float32).tofile(folder / "held")
    return torch.from_numpy(np.memmap(folder / "held", np.float32, mode="r"))


@pytest.mark.parametrize("make", [_prototypes, _mapped])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_tensors_that_cannot_be_written(
    make: Callable[[Path], torch.Tensor], tmp_path: Path
) -> None:
    held = make(tmp_path)
    network = run_both(
        lambda compile: network_of(
            built(), compile, [LambdaOp(lambda y: y + held, "pred", "pred")]
        ),
        batches(4),
        compile=CHECKED,
    )
    assert captured(network) == 1


def test_failed_step_leaves_adam_as_it_was() -> None:
    pair = Pair(optimizer=OPTIMIZERS["adam"])
    first, wrong, *rest = batches(5)
    wrong["y"][0] = 7
    with pair.network("train", 1):
        pair.step(first)
        before = [dict(one) for one in pair.model.current_optimizer.state.values()]
        before = [{name: value.clone() for name, value in one.items()} for one in before]
        with pytest.raises(IndexError):
            pair.network.run_step(wrong)
        now = pair.model.current_optimizer.state.values()
        for state, expected in zip(now, before, strict=True):
            torch.testing.assert_close(state, expected, rtol=0, atol=0)
        pair.other.load_state_dict(pair.model.state_dict())  # The failed step's statistics.
        for batch in rest:
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


def test_graph_of_the_user_around_an_evaluation() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    network = network_of(model, CHECKED)
    x = torch.ones(2, 6)
    (expected,) = torch.autograd.grad(model(x).sum(), model[0].weight)
    values = model(x)
    with network("eval", 1):
        for batch in batches(3):
            network.run_step(batch)
    assert captured(network) == 1
    (gradient,) = torch.autograd.grad(values.sum(), model[0].weight)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


def test_memory_that_another_process_writes_meanwhile() -> None:
    shared = np.zeros(3, np.float32)
    held = torch.from_numpy(shared)

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> Any:
            shared[0] += 1  # As another process does: torch does not know of it.
            return graph(*tensors)

        return run

    network = TorchNetwork(
        [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(lambda y: y + held[1:], "y", "z")],
        compile=CompileOptions(backend, verify=1),
    )
    with network("train", 1):
        for _ in range(4):
            network.run_step({"x": torch.ones(2)})
    assert captured(network) == 1
    assert list(shared) == [3, 0, 0]


def test_random_state_is_put_back_though_no_draw_is_visible() -> None:
    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> Any:
            torch.rand(5)
            return graph(*tensors)

        return run

    network = network_of(built(), CompileOptions(backend))
    with network("train", 1):
        network.run_step(batches(1)[0])
        before = torch.get_rng_state()
        network.run_step(batches(1)[0])
        assert torch.equal(torch.get_rng_state(), before)
    assert captured(network) == 1


def test_random_state_after_a_verified_step_is_that_of_an_eager_step() -> None:
    states = []
    for compile in (QUICK, False):
        network = network_of(built(lambda: mlp(0.3)), compile)
        torch.manual_seed(3)
        with network("train", 1):
            for batch in batches(2):
                network.run_step(batch)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# Nothing that is compared tells of the environment's variables.
def _of_environment(x: torch.Tensor) -> float:
    return float(os.environ["FASTNET_TEST"])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_frozen_number_is_found(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(
        built(lambda: mlp(dropout)),
        QUICK,
        [LambdaOp(lambda y: y * _of_environment(y), "pred", "pred")],
    )
    with falls_back(network, "in the captured graph"):
        for place, batch in enumerate(batches(3)):
            monkeypatch.setenv("FASTNET_TEST", str(1 + place))
            network.run_step(batch)


def test_results_that_are_not_tensors_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    network = TorchNetwork([LambdaOp(_of_environment, "x", "y")], compile=QUICK)
    with falls_back(network, "'y' is 1.0 instead of 2.0 in the captured graph"):
        for place in range(3):
            monkeypatch.setenv("FASTNET_TEST", str(1 + place))
            assert network.run_step({"x": torch.ones(2)})["y"] == 1 + place


@pytest.mark.parametrize("inner", [torch.bfloat16, torch.float32])
def test_autocast_of_the_user(inner: torch.dtype) -> None:
    def without_it(y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return y.float() @ torch.eye(3).mul(1.001)

    def make(compile: Any) -> TorchNetwork:
        between = [LambdaOp(without_it, "pred", "pred")] if inner == torch.float32 else []
        return network_of(built(), compile, between)

    network, eager = make(CHECKED), make(False)
    with network("train", 1), eager("train", 1):
        for batch in batches(5):
            # Autocast keeps the casts of weights until it ends.
            with torch.autocast("cpu", torch.bfloat16):
                found = network.run_step(batch)
            with torch.autocast("cpu", torch.bfloat16):
                expected = eager.run_step(batch)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert captured(network) == 1
