"""Mixed precision on the CPU: bfloat16 where that is safe, and full weights."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet import CompileOptions
from fastnet.backend import get_gradient
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer
from tests.network.programs import (
    batches,
    built,
    line,
    losses,
    mlp,
    run,
    run_all,
    same_weights,
    seeded,
    sgd,
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


class Product(torch.autograd.Function):
    """A product of matrices whose gradients autocast would round to bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].float()
        return gradient @ weight.T, x.T @ gradient


class Products(torch.nn.Module):
    """Two products: (batch, 16) -> (batch, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(16, 32) / 4)
        self.second = torch.nn.Parameter(torch.randn(32, 4) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Product.apply(x, self.first).float().tanh()
        return Product.apply(hidden, self.second).float()  # type: ignore[no-any-return]


def penalize(loss: torch.Tensor, slope: torch.Tensor, slopes: Any) -> torch.Tensor:
    squares = ((1e7 * one.float()) ** 2 for one in (slope, *slopes))
    return loss + sum(one.mean() for one in squares)


class Whitened(torch.optim.SGD):
    """Multiplies gradients by products of them, which bfloat16 rounds."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                parameter.grad = gradient + gradient @ gradient.T @ gradient
        super().step()


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


def exact_gram(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return gram(x)


def by_hand(twin: torch.nn.Module, windows: Any, clip_norm: float | None = None) -> None:
    """Train as PyTorch advises, with autocast around nothing but the forward passes."""
    optimizer = Whitened(twin.parameters(), lr=0.1)
    for window in windows:
        for batch in window:
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
            (loss / len(window)).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()


class TestAutocastIsDisabled:
    """In differentiation, clipping and the optimizer; what follows in a step is inside again."""

    @pytest.mark.parametrize("around", ["model", "step", "context", "both"])
    @pytest.mark.parametrize(
        ("after", "settings"),
        [
            (True, {}),
            (False, {"clip_norm": 0.1}),
            (True, {"defer": True}),
            (False, {"merge_grad": 2, "rest": "flush"}),
        ],
    )
    def test_training_is_a_hand_written_loop(
        self, around: str, after: bool, settings: dict[str, Any]
    ) -> None:
        model, twin = twins(Products)
        mixed = "bf16" if around in ("model", "both") else False
        built(model, lambda p: Whitened(p, lr=0.1), mixed_precision=mixed)
        seen: set[tuple[str, bool]] = set()

        def note(what: str, *args: Any) -> None:
            seen.add((what, torch.is_autocast_enabled("cpu")))

        model.first.register_hook(partial(note, "backward"))
        model.current_optimizer.register_step_pre_hook(partial(note, "optimizer"))
        ops, data = supervised(model, **settings), batches(3)
        if after:
            ops += [LambdaOp(partial(note, "after"), "x"), LambdaOp(gram, "x", "product")]
        network = TorchNetwork(ops)
        # Around several steps its cache of weights would become stale.
        enter = partial(torch.autocast, "cpu", torch.bfloat16)
        with ExitStack() as stack:
            if around == "context":
                stack.enter_context(enter(cache_enabled=False))
            stack.enter_context(network("train", 1))
            results = []
            for batch in data:
                with enter() if around in ("step", "both") else nullcontext():
                    before = torch.is_autocast_enabled("cpu")
                    results.append(network.run_step(batch))
                    assert torch.is_autocast_enabled("cpu") == before
        expected = {("backward", False), ("optimizer", False)}
        assert seen == (expected | {("after", True)} if after else expected)
        assert all(one["product"].dtype is torch.bfloat16 for one in results if after)
        merge = settings.get("merge_grad", 1)
        windows = [data[at : at + merge] for at in range(0, 3, merge)]
        by_hand(twin, windows, settings.get("clip_norm"))
        assert same_weights(model, twin)

    @pytest.mark.parametrize("given", [False, True])
    def test_gradients_as_values(self, given: bool) -> None:
        """Those of GradientOp, FGSM and `get_gradient`."""
        model, twin = twins(Products)
        built(model, lambda p: Whitened(p, lr=0.1))
        seen: list[bool] = []

        def differentiate(loss: torch.Tensor, x: torch.Tensor) -> Any:
            found = get_gradient(loss, x)
            seen.append(torch.is_autocast_enabled("cpu"))
            return found

        predict, loss, update = supervised(model, gradients="g" if given else None)
        network = TorchNetwork(
            [
                Watch("x"),
                predict,
                loss,
                FGSM("x", "loss", "attacked"),
                LambdaOp(differentiate, ["loss", "x"], "dx"),
                GradientOp("loss", "again", inputs="x"),
                GradientOp("loss", "g", model=model),
                update,
            ]
        )
        data = batches(3)
        with network("train", 1), torch.autocast("cpu", torch.bfloat16):
            for batch in data:
                result = network.run_step(batch)
                x = batch["x"].clone().requires_grad_(True)
                loss = functional.cross_entropy(twin(x), batch["t"])
                with torch.autocast("cpu", enabled=False):
                    sources = [x, *twin.parameters()]
                    dx, *gradients = torch.autograd.grad(loss, sources)
                assert torch.equal(result["dx"], dx)
                assert torch.equal(result["again"], dx)
                low, high = x.min(), x.max()
                attacked = (x + 0.01 * dx.sign()).clamp(low, high)
                assert torch.equal(result["attacked"], attacked)
                assert all(map(torch.equal, result["g"], gradients))
                with torch.autocast("cpu", enabled=False):
                    by_hand(twin, [[batch]])
        assert seen == [True] * 3
        assert same_weights(model, twin)

    def test_a_gradient_penalty(self) -> None:
        """As in PyTorch's examples: by a scaled loss, so that little is lost, and unscaled."""
        model, twin = twins(Products)
        built(model, sgd(), mixed_precision="fp16")
        other = built(seeded(mlp, 1), sgd(), mixed_precision="fp16")
        other.current_optimizer.scaler.scale(torch.ones(()))
        other.current_optimizer.scaler.update(8.0)
        predict, loss, update = supervised(model)
        # The gradients of this loss are too small for float16.
        small = LambdaOp(lambda loss: loss * 1e-7, "loss", "small")
        network = TorchNetwork(
            [
                Watch("x"),
                predict,
                loss,
                small,
                GradientOp("small", "slope", inputs="x", higher_order=True),
                GradientOp("small", "slopes", model=model, higher_order=True),
                LambdaOp(penalize, ["loss", "slope", "slopes"], "loss"),
                ModelOp(other, "x", "of_other"),
                LambdaOp(lambda y: (y**2).mean(), "of_other", "loss of other"),
                UpdateOp(other, "loss of other"),
                update,
            ]
        )
        data = batches(3)
        results = run_all(network, data)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for batch, result in zip(data, results, strict=True):
            x = batch["x"].clone().requires_grad_(True)
            with torch.autocast("cpu", torch.float16):
                first = functional.cross_entropy(twin(x), batch["t"])
            found = torch.autograd.grad(
                scaler.scale(first * 1e-7), [x, *twin.parameters()], create_graph=True
            )
            slope, *slopes = [one / scaler.get_scale() for one in found]
            with torch.autocast("cpu", torch.float16):
                total = penalize(first, slope, slopes)
            scaler.scale(total).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            torch.testing.assert_close(result["slope"], slope)
            torch.testing.assert_close(result["loss"], total)
            assert slope.any()
        assert same_weights(model, twin)

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("clip", [None, 0.1])
    def test_compiled_steps_are_eager_ones(self, mixed: bool, clip: float | None) -> None:
        models = []
        for compile in (CompileOptions(backend="eager"), False):
            model = built(seeded(Products), sgd(), mixed_precision="bf16" if mixed else False)
            ops = supervised(model, clip_norm=clip)
            ops += [LambdaOp(gram, "x", "product"), LambdaOp(exact_gram, "x", "exact")]
            network = TorchNetwork(ops, compile=compile)
            results = []
            with network("train", 1):
                for batch in batches(6):
                    with torch.autocast("cpu", torch.bfloat16, enabled=not mixed):
                        results.append(network.run_step(batch))
            assert all(one["product"].dtype is torch.bfloat16 for one in results)
            for result, batch in zip(results, batches(6), strict=True):
                torch.testing.assert_close(result["exact"], gram(batch["x"]))
            models.append(model)
            if compile:
                assert len(network.traces) == 1
                assert network.traces[0].fallback is None
        for own, other in zip(*(one.parameters() for one in models), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


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
    with pytest.raises(
        ValueError, match=r"mixed_precision must be True .*'mixed_float16'"
    ) as caught:
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
