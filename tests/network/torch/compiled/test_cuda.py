"""Captured steps on a GPU, where there is one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    assert_same_weights,
    batches,
    built,
    captured,
    cross_entropy,
    network_of,
)
from tests.network.torch.compiled.test_inductor import by_inductor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BY_INDUCTOR = CompileOptions()
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(params=["eager", pytest.param("inductor", marks=[pytest.mark.slow, by_inductor])])
def options(request: Any) -> CompileOptions:
    return CompileOptions(backend=request.param)


def twin_of(model: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    other = copy.deepcopy(model).cuda()
    return other, make(other.parameters())


def by_hand(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    model.train()
    optimizer.zero_grad()
    loss = cross_entropy(model(batch["x"].cuda()), batch["y"].cuda())
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach().cpu()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_a_hand_written_loop(name: str, options: CompileOptions) -> None:
    model = built(optimizer=OPTIMIZERS[name])
    other, optimizer = twin_of(model, OPTIMIZERS[name])
    network = network_of(model, options)
    with network("train", 1):
        for batch in batches(50):
            loss = network.run_step(batch)["loss"]
            assert loss.device.type == "cpu"
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), **CLOSE)
    assert captured(network) == 1
    assert_same_weights(model, other, rtol=1e-3)
    own = model.current_optimizer.state_dict()["state"]
    for place, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            assert own[place][key].device == value.device
            torch.testing.assert_close(own[place][key], value, rtol=1e-3, atol=1e-5)


def test_results_of_one_step_are_not_those_of_the_next(options: CompileOptions) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x * 2, "x", "y")], compile=options, returns="device")
    data = batches(6)
    with network("infer", 1):
        found = [network.run_step(batch)["y"] for batch in data]
    for batch, one in zip(data, found, strict=True):
        assert one.device.type == "cuda"
        assert torch.equal(one.cpu(), batch["x"] * 2)
    assert captured(network) == 1


def test_batches_that_are_there_already_and_pinned_ones(options: CompileOptions) -> None:
    model = built()
    other, optimizer = twin_of(model, OPTIMIZERS["sgd"])
    network = network_of(model, options)
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.Tensor.cuda,
        torch.Tensor.pin_memory,
        torch.Tensor.clone,
    ]
    with network("train", 1):
        for place, batch in enumerate(batches(12)):
            given = {key: ways[place % 3](value) for key, value in batch.items()}
            result = network.run_step(given)
            assert all(result[key] is value for key, value in given.items())
            torch.testing.assert_close(result["loss"], by_hand(other, optimizer, batch), **CLOSE)
    assert captured(network) == 1


def test_a_rate_that_is_set_and_states_that_are_loaded(options: CompileOptions) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other, optimizer = twin_of(model, OPTIMIZERS["adam"])
    network = network_of(model, options)
    with network("train", 1):
        for place, batch in enumerate(batches(30)):
            if place == 6:
                kept = copy.deepcopy(model.current_optimizer.state_dict())
                weights = copy.deepcopy(model.state_dict())
            for each, own in ((model, model.current_optimizer), (other, optimizer)):
                own.param_groups[0]["lr"] = 0.01 / (1 + place)
                if place == 15:
                    own.load_state_dict(copy.deepcopy(kept))
                    each.load_state_dict(weights)
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), **CLOSE)
    assert captured(network) == 1
    assert_same_weights(model, other, rtol=1e-3)


def test_tracing_leaves_the_generator_as_it_was(options: CompileOptions) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")], compile=options)
    torch.manual_seed(7)
    before = torch.cuda.get_rng_state()
    with network("infer", 1):
        for batch in batches(4):
            network.run_step(batch)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_dynamic_rows(options: CompileOptions) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other, optimizer = twin_of(model, OPTIMIZERS["adam"])
    network = network_of(model, options)
    with network("train", 1):
        for size in (5, 3, 7, 5):
            for batch in batches(3, size=size):
                loss = network.run_step(batch)["loss"]
                torch.testing.assert_close(loss, by_hand(other, optimizer, batch), **CLOSE)
    assert captured(network) == 2
    assert_same_weights(model, other, rtol=1e-3)


def test_on_streams_of_the_programs_own(options: CompileOptions) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x * 2, "x", "y")], compile=options)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    with network("infer", 1):
        for place, batch in enumerate(batches(20, size=2000)):
            with torch.cuda.stream(streams[place % 2]):
                assert torch.equal(network.run_step(batch)["y"], batch["x"] * 2)


def test_memory_does_not_grow(options: CompileOptions) -> None:
    network = network_of(built(optimizer=OPTIMIZERS["adam"]), options)
    seen = []
    for epoch in range(1, 8):
        with network("train", epoch):
            for batch in batches(20):
                network.run_step(batch)
            gc.collect()
            seen.append(torch.cuda.memory_allocated())
    assert seen[-1] <= seen[1]
