"""Ops after the last update that cannot be captured run eagerly after a program of the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    mlp,
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*run op by op")
        yield


class Metric(TensorOp):
    """Reads values out of tensors, and counts its calls, which no program can."""

    def __init__(self) -> None:
        super().__init__(["pred", "y"], ["accuracy", "calls"])
        self.calls = 0

    def forward(self, data: list[torch.Tensor], state: Any) -> list[Any]:
        pred, y = data
        self.calls += 1
        return [torch.tensor((pred.argmax(1) == y).float().mean().item()), self.calls]


def last_ops() -> list[Any]:
    return [Metric(), LambdaOp(lambda x: x + 1, "accuracy", "more")]


def networks(
    last: Callable[[], list[Any]] = last_ops, mixed_precision: Any = False, **update: Any
) -> tuple[TorchNetwork, TorchNetwork]:
    """Return two networks of the same training step, an eager one and a compiled one."""
    made = []
    for compile in (False, QUICK):
        torch.manual_seed(0)
        model = fastnet.build(mlp, OPTIMIZERS["adam"], mixed_precision=mixed_precision)
        ops = [
            ModelOp(model, "x", "pred"),
            CrossEntropy(["pred", "y"], "loss", from_logits=True),
            UpdateOp(model, "loss", **update),
        ]
        made.append(TorchNetwork([*ops, *last()], compile=compile))
    return made[0], made[1]


def compare(one: TorchNetwork, other: TorchNetwork, epochs: int = 2, **context: Any) -> None:
    """Run the same steps in both networks, and compare the results and the weights."""
    for epoch in range(1, epochs + 1):
        with one("train", epoch, **context), other("train", epoch, **context):
            for batch in batches(4, seed=epoch):
                expected, found = one.run_step(dict(batch)), other.run_step(dict(batch))
                assert list(expected) == list(found)
                for key, value in expected.items():
                    torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)
    assert_same_weights(one.models[0], other.models[0])


def is_split(network: TorchNetwork) -> bool:
    whole, *parts = network.traces
    return whole.fallback is not None and [one.fallback for one in parts] == [None]


@pytest.mark.parametrize("desired", [None, ["more"], ["calls", "loss"]])
def test_last_ops_run_eagerly(desired: Any) -> None:
    one, other = networks()
    compare(one, other, desired_output_keys=desired)
    assert is_split(other)
    assert "Metric (op 3" in str(other.traces[0].fallback)
    assert "UpdateOp (op 2" in str(other.traces[1].part)


def test_merged_gradients() -> None:
    one, other = networks(merge_grad=2)
    compare(one, other)
    assert all(trace.fallback is None for trace in other.traces[1:])


@pytest.mark.parametrize("reason", ["deferred", "deletes", "model", "between", "autocast"])
def test_steps_that_stay_eager(reason: str) -> None:
    update: dict[str, Any] = {}
    last = last_ops
    if reason == "deferred":
        update["defer"] = True
    elif reason == "autocast":
        update["mixed_precision"] = "bfloat16"
    elif reason == "deletes":
        last = lambda: [Metric(), Delete("accuracy")]  # noqa: E731
    one, other = networks(last, **update)
    if reason == "model":
        for network in (one, other):
            network.ops.append(ModelOp(network.models[0], "x", "after"))
    elif reason == "between":
        for network in (one, other):
            network.ops.insert(1, network.ops.pop(3))
    compare(one, other)
    assert [trace.fallback is None for trace in other.traces] == [False]


def test_errors_name_the_op_and_its_index() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        if x.item() >= 0 and fails:
            raise ArithmeticError("no")
        return x

    fails: list[bool] = []
    _, network = networks(
        lambda: [LambdaOp(lambda x: x, "pred", "same"), LambdaOp(fail, "loss", "z")]
    )
    (batch,) = batches(1)
    with network("train", 1):
        for _ in range(3):
            network.run_step(batch)
        with pytest.raises(KeyError, match=r"ModelOp \(op 0.*'x'"):
            network.run_step({"y": batch["y"]})
        fails.append(True)
        with pytest.raises(ArithmeticError) as caught:
            network.run_step(batch)
    assert "LambdaOp (op 4" in "".join(caught.value.__notes__)
    assert is_split(network)


def test_profile_rows() -> None:
    _, network = networks()
    data = batches(3)
    with network("train", 1):
        for batch in data:
            network.run_step(batch)
    profile = fastnet.profile(network, data[0], steps=4)
    titles = [row.title for section in profile.sections for row in section.rows]
    assert any("Metric" in title for title in titles)
    assert any("CompiledOps" in title for title in titles)
