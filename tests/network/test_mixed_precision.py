"""Mixed precision on the CPU: bfloat16 where that is safe, and full weights."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.slicer import AxisSlicer
from tests.network.programs import (
    batches,
    built,
    line,
    losses,
    mlp,
    raising,
    run,
    run_all,
    supervised,
    twins,
    weights,
)

WAIT = 300  # seconds, after which something hangs

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU it is float16; see test_cuda.py"
)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("merge", [1, 2])
def test_training_is_like_a_hand_written_loop(optimizer: str, merge: int) -> None:
    model, twin = twins(mlp)
    built(model, optimizer, mixed_precision=True)
    network = fastnet.Network(supervised(model, merge_grad=merge))
    data = batches(20)
    results = run_all(network, data)
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    other = make(twin.parameters(), lr=0.01 if optimizer == "sgd" else 0.001)
    expected = []
    for step, batch in enumerate(data, start=1):
        with torch.autocast("cpu"):
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
        (loss / merge).backward()
        expected.append(float(loss.detach()))
        if step % merge == 0:
            other.step()
            other.zero_grad()
    assert losses(results) == pytest.approx(expected, rel=1e-3)
    for own, of_twin in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, of_twin, rtol=1e-3, atol=1e-4)


def test_what_is_half_and_what_is_not() -> None:
    model = built(mlp, "sgd", mixed_precision=True)
    network = fastnet.Network(supervised(model))
    assert network.mixed_precision
    before = weights(model)
    (batch,) = batches(1)
    result = run(network, batch, "train")
    assert result["y"].dtype is torch.bfloat16
    assert result["loss"].dtype is torch.float32
    assert result["x"].dtype is torch.float32
    assert {value.dtype for value in weights(model).values()} == {torch.float32}
    assert not torch.equal(before["0.weight"], model[0].weight)
    assert model.mixed_precision
    assert model.current_optimizer.scaler is None  # only CUDA scales losses


def test_full_precision_is_not_touched() -> None:
    model, twin = twins(mlp)
    network = fastnet.Network(supervised(built(model, "sgd")))
    assert not network.mixed_precision
    (batch,) = batches(1)
    result = run(network, batch, "eval")
    assert result["y"].dtype is torch.float32
    assert torch.equal(result["y"], twin(batch["x"]))


@pytest.mark.parametrize("sliced", [False, True])
def test_the_setting_ends_with_the_ops(sliced: bool) -> None:
    seen: list[bool] = []

    def look(x: Any) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return x

    model = built(line, None, mixed_precision=True)
    network = TorchNetwork(
        [ModelOp(model, "x", "y"), LambdaOp(look, "y", "y")],
        postprocessing=NumpyLambdaOp(look, "y", "z"),
        slicers=[AxisSlicer(axis=0, slice="x", unslice=["x", "y", "z"])] if sliced else None,
    )
    with network(mode="infer", epoch=1):
        assert not torch.is_autocast_enabled("cpu")
        for _ in range(2):
            result = network.run_step({"x": torch.ones(2, 2)})
            assert not torch.is_autocast_enabled("cpu")
    assert seen == [True] * (2 if sliced else 1) + [False] + [True] * (2 if sliced else 1) + [False]
    assert result["z"].dtype is torch.float32  # numpy has no bfloat16


def test_the_setting_ends_with_an_op_that_raises() -> None:
    model = built(line, None, mixed_precision=True)
    network = TorchNetwork([ModelOp(model, "x", "y"), LambdaOp(lambda y: 1 / 0, "y", "z")])
    with pytest.raises(ZeroDivisionError):
        run(network, {"x": torch.ones(2, 2)})
    assert not torch.is_autocast_enabled("cpu")


def measured(network: TorchNetwork, profiled: bool) -> AbstractContextManager[Any]:
    """Have the times of a network's steps taken, or not."""
    return fastnet.profile(network) if profiled else nullcontext()


@pytest.mark.parametrize("profiled", [False, True])
def test_an_op_that_runs_the_network_again(profiled: bool) -> None:
    seen: list[bool] = []

    def again(y: torch.Tensor) -> torch.Tensor:
        if len(y) > 1:
            network.run_step({"x": torch.ones(1, 2)})
            seen.append(torch.is_autocast_enabled("cpu"))
        return y

    model = built(line, None, mixed_precision=True)
    network = TorchNetwork([ModelOp(model, "x", "y"), LambdaOp(again, "y", "y")])
    with measured(network, profiled), network(mode="infer", epoch=1):
        for _ in range(2):
            network.run_step({"x": torch.ones(2, 2)})
            assert not torch.is_autocast_enabled("cpu")
    assert seen == [True, True]


@pytest.mark.parametrize("profiled", [False, True])
def test_steps_of_two_threads_at_once(profiled: bool) -> None:
    """One of them is run by a program that has an autocast of its own."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def meet(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            first_is_in.set()
            assert second_is_in.wait(WAIT)
        else:
            second_is_in.set()
            assert first_is_out.wait(WAIT)
        return y

    model = built(line, None, mixed_precision=True)
    network = TorchNetwork([ModelOp(model, "x", "y"), LambdaOp(meet, ["x", "y"], "y")])

    def first() -> bool:
        try:
            network.run_step({"x": torch.ones(1, 2)})
            return torch.is_autocast_enabled("cpu")
        finally:
            first_is_out.set()

    def second() -> bool:
        assert first_is_in.wait(WAIT)
        with torch.autocast("cpu"):
            network.run_step({"x": torch.ones(2, 2)})
            return torch.is_autocast_enabled("cpu")

    with (
        measured(network, profiled),
        network(mode="infer", epoch=1),
        ThreadPoolExecutor(2) as pool,
    ):
        found = [one.result(WAIT) for one in (pool.submit(first), pool.submit(second))]
    assert found == [False, True]


def test_models_must_agree() -> None:
    half = built(line, None, mixed_precision=True, model_name="half")
    full = built(line, None, model_name="full")
    for make in (fastnet.Network, TorchNetwork):
        with raising(
            ValueError,
            "The models ['half'] have mixed precision and ['full'] have not, but the models of a "
            "network must agree. Build all of them with the same mixed_precision.",
        ):
            make([ModelOp(half, "x", "y"), ModelOp(full, "x", "z")])


def test_on_macos_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    text = "Mixed precision is not supported on macOS, so it is switched off."
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        model = built(line, None, mixed_precision=True)
    assert not model.mixed_precision
