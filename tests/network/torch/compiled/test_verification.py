"""The verification of compiled steps, and programs that compute something else than the ops."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled import verification
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


def _wrong(graph: Any, inputs: Any) -> Callable[..., Any]:
    """Compile a graph to a function whose first output is off by a hundredth."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        first, *others = graph(*tensors)
        return [first * 1.01, *others]

    return run


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_of_a_wrong_program_runs_eagerly(optimizer: str) -> None:
    pair = Pair(optimizer=OPTIMIZERS[optimizer], compile=CompileOptions(_wrong))
    reason = "gave other results than the same step run eagerly: 'pred' differs"
    with falls_back(pair.network, reason):
        for batch in batches(5):
            pair.step(batch)
    pair.assert_same_weights()
    reasons = [record.reason for record in pair.network.traces]
    assert reasons == ["first step", "a program has failed its verification"]


def test_every_nth_step_is_verified() -> None:
    network = network_of(built(), CompileOptions(_wrong, verify=3))
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
        with pytest.raises(RuntimeError, match=r"In mode 'train' .* 'pred' differs by"):
            network.run_step(batches(1)[0])


def test_steps_that_are_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    def unverified(options: CompileOptions, dropout: float = 0.0) -> str | None:
        network = network_of(built(lambda: mlp(dropout)), options)
        with network("train", 1):
            network.run_step(batches(1)[0])
        (record,) = network.traces
        return record.unverified

    assert unverified(QUICK) is None
    assert unverified(QUICK, 0.5) is None
    assert unverified(CompileOptions("eager", verify=None)) == "verify=None"
    assert unverified(CompileOptions("eager", verify=2)) is None
    monkeypatch.setattr(verification, "_free_memory", lambda device: 10)
    assert "needs 0 MB on cpu, where 0 MB are free" in str(unverified(QUICK))


class Recomputed(nn.Module):
    """Recomputes a layer with dropout in its backward pass."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 40), nn.Dropout(dropout), nn.Linear(40, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=False)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_checkpoints_around_dropout_are_exact(dropout: float) -> None:
    network = run_both(
        lambda compile: network_of(built(lambda: Recomputed(dropout)), compile),
        batches(5),
        before=lambda place, network: torch.manual_seed(place),
    )
    (record,) = network.traces
    assert bool(dropout) is ("random state" in str(record.fallback))


def _forked(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return x + torch.rand(2)


def _seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    return x + torch.rand(2)


def _restored(x: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    noise = torch.rand(2)
    torch.set_rng_state(state)
    return x + noise


@pytest.mark.parametrize("fn", [_forked, _seeded, _restored])
def test_ops_that_seed_fork_or_restore_the_random_state(fn: Any) -> None:
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    torch.manual_seed(1)
    with falls_back(network, "seed, fork or restore torch's random state", "infer"):
        found = [network.run_step({"x": torch.zeros(2)})["y"] for _ in range(4)]
    after = torch.rand(1)
    torch.manual_seed(1)
    expected = [fn(torch.zeros(2)) for _ in range(4)]
    assert all(map(torch.equal, found, expected))
    assert torch.equal(after, torch.rand(1))


def _conditional(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def test_torch_cond_runs_eagerly_and_still_works_afterwards() -> None:
    network = TorchNetwork([LambdaOp(_conditional, "x", "y")], compile=QUICK)
    with falls_back(network, "torch.cond", "infer"):
        for sign in (1.0, -1.0, 1.0):
            x = torch.full((2,), sign)
            expected = x * 2 if sign > 0 else x - 1
            assert torch.equal(network.run_step({"x": x})["y"], expected)
    assert torch.equal(_conditional(torch.ones(2)), torch.full((2,), 2.0))


def _by_dlpack(x: torch.Tensor) -> Any:
    return torch.from_dlpack(x) * 2


def _applied(x: torch.Tensor) -> torch.Tensor:
    return x.clone().apply_(lambda value: value * 2)


@pytest.mark.parametrize("fn", [_by_dlpack, _applied])
def test_functions_that_read_memory_run_eagerly(fn: Any) -> None:
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    with falls_back(network, "looks at the values of tensors", "infer"):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": torch.ones(2)})["y"], torch.full((2,), 2.0))


def test_another_thread_that_draws_during_a_trace_gets_each_number_once() -> None:
    drawn = io.StringIO()  # What is written to it is not compared.

    def draw(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: print(torch.rand(1).item(), file=drawn))
        thread.start()
        thread.join()
        return x * 2

    network = TorchNetwork([LambdaOp(draw, "x", "y")], compile=CompileOptions("eager", verify=None))
    with network("infer", 1):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
    print(torch.rand(1).item(), file=drawn)
    numbers = drawn.getvalue().split()
    assert len(set(numbers)) == len(numbers) == 3
    assert captured(network) == 1


def test_a_weight_decay_that_becomes_nan() -> None:
    pair = Pair()
    with pair.network("train", 1):
        for place, batch in enumerate(batches(5)):
            for _, optimizer in pair.sides():
                optimizer.param_groups[0]["weight_decay"] = float("nan") if place == 4 else 0.0
            pair.step(batch)
    for model, _ in pair.sides():
        assert all(one.isnan().all() for one in model.parameters())


def test_a_transformer_is_advised_to_name_its_mask() -> None:
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)
    layer.requires_grad_(False)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    for settings in ({}, {"is_causal": True}):
        op = LambdaOp(lambda x, settings=settings: layer(x, mask=mask, **settings), "x", "y")
        network = TorchNetwork([op], compile=QUICK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with network("train", 1):
                network.run_step({"x": torch.ones(2, 3, 4)})
        assert ("pass is_causal=" in str(network.traces[0].fallback)) is not bool(settings)
