"""Mixed precision on the CPU: bfloat16 where that is safe, and full weights."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
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


@pytest.mark.parametrize("merge", [1, 2])
def test_float16_is_like_a_hand_written_loop_that_scales(merge: int) -> None:
    model, twin = twins(mlp)
    built(model, "sgd", mixed_precision="fp16")
    network = fastnet.Network(supervised(model, merge_grad=merge))
    data = batches(6)
    results = run_all(network, data)
    assert {result["y"].dtype for result in results} == {torch.float16}
    other = torch.optim.SGD(twin.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    expected = []
    for step, batch in enumerate(data, start=1):
        with torch.autocast("cpu", torch.float16):
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
        scaler.scale(loss / merge).backward()
        expected.append(float(loss.detach()))
        if step % merge == 0:
            scaler.step(other)
            scaler.update()
            other.zero_grad()
    assert losses(results) == pytest.approx(expected, rel=1e-3)
    assert model.current_optimizer.scaler.get_scale() == scaler.get_scale()
    for own, of_twin in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, of_twin, rtol=1e-3, atol=1e-4)


def test_float16_scales_what_it_would_lose() -> None:
    """The least number of float16 is 6e-8: without a scaled loss these gradients would be 0."""
    model, twin = twins(line)
    built(model, lambda parameters: torch.optim.SGD(parameters, lr=1e7), mixed_precision="fp16")
    network = TorchNetwork(
        [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y: (y.float() * 1e-9).sum(), "y", "loss"),
            UpdateOp(model, "loss"),
        ]
    )
    run(network, {"x": torch.ones(2, 2)}, "train")
    moved = next(twin.parameters()) - next(model.parameters())
    torch.testing.assert_close(moved, torch.full_like(moved, 2e-2), rtol=1e-2, atol=0)


NAMES = {
    True: torch.bfloat16,
    np.True_: torch.bfloat16,
    "bf16": torch.bfloat16,
    "bf16-mixed": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "mixed_bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "fp16-mixed": torch.float16,
    "float16": torch.float16,
    "mixed_float16": torch.float16,
    False: torch.float32,
    None: torch.float32,
    "fp32": torch.float32,
    "float32": torch.float32,
}


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize(("name", "dtype"), NAMES.items(), ids=map(str, NAMES))
def test_names_mean_what_they_say(name: Any, dtype: torch.dtype, profiled: bool) -> None:
    model = built(mlp, "sgd", mixed_precision=name)
    network = fastnet.Network(supervised(model))
    (batch,) = batches(1)
    with measured(network, profiled):
        result = run(network, batch, "train")
    assert result["y"].dtype is dtype
    assert (model.current_optimizer.scaler is not None) == (dtype is torch.float16)
    assert {value.dtype for value in weights(model).values()} == {torch.float32}
    assert (
        bool(network.mixed_precision) == bool(model.mixed_precision) == (dtype is not torch.float32)
    )
    if isinstance(name, bool):
        assert model.mixed_precision is name


@pytest.mark.parametrize("name", ["half", "FP16", "", 2, 0.5, torch.float16, ["fp16"]])
def test_names_that_there_are_not(name: Any) -> None:
    ran: list[int] = []
    with raising(
        ValueError,
        "mixed_precision is True (bfloat16 for torch on a CPU, else float16), False, or one of "
        "['fp16', 'fp16-mixed', 'float16', 'mixed_float16', 'bf16', 'bf16-mixed', 'bfloat16', "
        f"'mixed_bfloat16', 'fp32', 'float32'], not {name!r}.",
    ):
        fastnet.build(lambda: ran.append(1), None, mixed_precision=name)
    assert ran == []


def test_models_must_agree_on_the_type() -> None:
    models = [
        built(line, None, mixed_precision=name, model_name=f"of {name}")
        for name in ("bf16", "fp16", "bfloat16")
    ]
    assert TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[2], "x", "z")])
    differ = "mixed_precision.*'of bf16': 'bfloat16', 'of fp16': 'float16'"
    with pytest.raises(ValueError, match=differ):
        TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[1], "x", "z")])


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
        with pytest.raises(ValueError, match=r"mixed_precision.*'half': True, 'full': False"):
            make([ModelOp(half, "x", "y"), ModelOp(full, "x", "z")])


def test_on_macos_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    text = "Mixed precision is not supported on macOS, so it is switched off."
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as caught:
        model = fastnet.build(line, None, mixed_precision=True)
    assert [one.filename for one in caught] == [__file__]
    assert not model.mixed_precision
