"""Captured steps that call operators of `torch.library`, and layers whose weights are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.docs.programs import programs
from tests.network.torch.compiled.steps import (
    QUICK,
    batches,
    built,
    captured,
    fallbacks,
    falls_back,
    network_of,
    run_both,
)
from tests.network.torch.compiled.test_inductor import by_inductor


@torch.library.custom_op("fastnet_tests::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * factor)


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_keep_factor
)


@torch.library.custom_op("fastnet_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


without_fake.register_autograd(lambda ctx, gradient: gradient * 2)


@torch.library.custom_op("fastnet_tests::double_in_place", mutates_args=("x",))
def double_in_place(x: torch.Tensor) -> None:
    x.mul_(2)


@double_in_place.register_fake
def _(x: torch.Tensor) -> None:
    pass


def network_with(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], TorchNetwork]:
    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        ops = [ModelOp(model, "x", "pred"), LambdaOp(loss, "pred", "loss")]
        return TorchNetwork([*ops, UpdateOp(model, "loss")], compile=compile)

    return make


@pytest.mark.parametrize(
    "call",
    [
        lambda x: scale(x, 3.0),
        lambda x: torch.ops.fastnet_tests.scale(x, 3.0),
        lambda x: torch.ops.fastnet_tests.scale.default(x, 3.0),
    ],
)
def test_operator_that_cannot_be_traced_is_captured(call: Any) -> None:
    """Its body calls numpy, whose values a trace does not have."""
    assert captured(run_both(network_with(lambda x: (call(x) ** 2).mean()), batches(4))) == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (without_fake, "register_fake"),
        (lambda x: (double_in_place(y := x.clone()), y)[1], "which changes its arguments; let it"),
    ],
)
def test_operator_that_is_not_captured(call: Any, reason: str) -> None:
    network = network_with(lambda x: (call(x) ** 2).mean())(QUICK)
    with falls_back(network, reason):
        for batch in batches(3):
            network.run_step(batch)


def test_ctc_of_the_page_equals_torchs() -> None:
    (program,) = (one for one in programs("compile") if "custom_op" in one)
    names: dict[str, Any] = {}
    exec(compile(program, "compile.md", "exec"), names)
    ctc = names["ctc"]

    class CTC(TensorOp):
        def __init__(self, by_torch: bool) -> None:
            super().__init__(["pred", "targets", "lengths", "target_lengths"], "loss")
            self.by_torch = by_torch

        def forward(self, data: Any, state: Any) -> torch.Tensor:
            pred, *others = data
            log_probs = pred.log_softmax(-1).transpose(0, 1)
            if self.by_torch:
                return functional.ctc_loss(log_probs, *others)
            return ctc(log_probs, *others)[0]  # type: ignore[no-any-return]

    def make(compile: Any, by_torch: bool | None = None) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 5))
        loss = CTC(by_torch=not compile if by_torch is None else by_torch)
        return TorchNetwork(
            [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss")], compile=compile
        )

    generator = torch.Generator().manual_seed(0)
    data = [
        {
            "x": torch.randn(3, 9, 6, generator=generator),
            "targets": torch.randint(1, 5, (3, 4), generator=generator),
            "lengths": torch.randint(8, 10, (3,), generator=generator),
            "target_lengths": torch.randint(1, 5, (3,), generator=generator),
        }
        for _ in range(5)
    ]
    assert captured(run_both(make, data)) == 1
    network = make(QUICK, by_torch=True)
    with falls_back(network, "for its lengths; make a custom operator of it"):
        for batch in data:
            network.run_step(batch)


@pytest.mark.parametrize("name", ["spectral_norm", "weight_norm"])
def test_advice_for_a_hook_that_replaces_a_weight(name: str) -> None:
    old, new = getattr(nn.utils, name), getattr(nn.utils.parametrizations, name)

    def make_with(wrap: Any) -> Callable[[Any], TorchNetwork]:
        def make(compile: Any) -> TorchNetwork:
            model = built(lambda: nn.Sequential(wrap(nn.Linear(6, 6)), nn.Linear(6, 3)))
            return network_of(model, compile)

        return make

    with pytest.warns(FutureWarning) if name == "weight_norm" else torch.no_grad():
        network = make_with(old)(QUICK)
    with falls_back(network, f"use torch.nn.utils.parametrizations.{name}"):
        for batch in batches(3):
            network.run_step(batch)
    assert captured(run_both(make_with(new), batches(4))) == 1


@by_inductor
@pytest.mark.slow
def test_operator_whose_fake_has_other_strides_is_found() -> None:
    network = TorchNetwork([LambdaOp(lambda x: transposed(x) * 2, "x", "y")], compile=True)
    with network("infer", 1):
        for _ in range(3):
            x = torch.randn(3, 4)
            assert torch.equal(network.run_step({"x": x})["y"], x.T.contiguous() * 2)
    (reason,) = fallbacks(network)
    assert "there is a AssertionError" in reason
    assert "expected size" in reason


@torch.library.custom_op("fastnet_tests::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.T.contiguous()


@transposed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x.T)
