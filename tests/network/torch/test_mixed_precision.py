"""Mixed precision on the CPU: bfloat16 where that is safe, and full weights."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    run,
    run_all,
    supervised,
    twins,
    weights,
)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU it is float16; see test_cuda.py"
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("merge", [1, 2])
def test_training_is_like_a_hand_written_loop(dtype: torch.dtype, merge: int) -> None:
    scales = dtype is torch.float16
    model, twin = twins(mlp)
    built(model, "sgd", mixed_precision="fp16" if scales else True)
    network = fastnet.Network(supervised(model, merge_grad=merge))
    data = batches(6)
    results = run_all(network, data)
    assert {result["y"].dtype for result in results} == {dtype}
    other = torch.optim.SGD(twin.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    expected = []
    for step, batch in enumerate(data, start=1):
        with torch.autocast("cpu", dtype):
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
        scaler.scale(loss / merge).backward()
        expected.append(float(loss.detach()))
        if step % merge == 0:
            scaler.step(other)
            scaler.update()
            other.zero_grad()
    assert losses(results) == pytest.approx(expected, rel=1e-3)
    if scales:
        assert model.current_optimizer.scaler.get_scale() == scaler.get_scale()
    for own, of_twin in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, of_twin, rtol=1e-3, atol=1e-4)


NAMES = {
    True: torch.bfloat16,
    np.True_: torch.bfloat16,
    **dict.fromkeys(["bf16", "bf16-mixed", "bfloat16", "mixed_bfloat16"], torch.bfloat16),
    **dict.fromkeys(["fp16", "fp16-mixed", "float16", "mixed_float16"], torch.float16),
    **dict.fromkeys([False, None, "fp32", "float32"], torch.float32),
}


@pytest.mark.parametrize(("name", "dtype"), NAMES.items(), ids=map(str, NAMES))
def test_names_mean_what_they_say(name: Any, dtype: torch.dtype) -> None:
    model = built(mlp, "sgd", mixed_precision=name)
    network = fastnet.Network(supervised(model))
    result = run(network, batches(1)[0], "train")
    assert result["y"].dtype is dtype
    assert (model.current_optimizer.scaler is not None) == (dtype is torch.float16)
    assert {value.dtype for value in weights(model).values()} == {torch.float32}
    is_mixed = dtype is not torch.float32
    assert bool(network.mixed_precision) == bool(model.mixed_precision) == is_mixed


@pytest.mark.parametrize("name", ["half", "FP16", 2, torch.float16])
def test_names_that_there_are_not(name: Any) -> None:
    with pytest.raises(ValueError, match=r"mixed_precision is True .*'mixed_float16'") as caught:
        fastnet.build(lambda: 1 / 0, None, mixed_precision=name)
    assert str(caught.value).endswith(f"not {name!r}.")


def test_models_must_agree_on_the_type() -> None:
    models = [
        built(line, None, mixed_precision=name, model_name=f"of {name}")
        for name in ("bf16", "fp16", "bfloat16")
    ]
    assert TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[2], "x", "z")])
    differ = "mixed_precision.*'of bf16': 'bfloat16', 'of fp16': 'float16'"
    with pytest.raises(ValueError, match=differ):
        TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[1], "x", "z")])


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


def test_on_macos_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.warns(UserWarning, match="not supported on macOS") as caught:
        model = fastnet.build(line, None, mixed_precision=True)
    assert [one.filename for one in caught] == [__file__]
    assert not model.mixed_precision
