"""Updates that clip gradients and tell of themselves, beside loops by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.programs import (
    batches,
    built,
    line,
    mlp,
    no_gradients,
    run_all,
    same_weights,
    sgd,
    supervised,
    twins,
)

TOLD: Any = {"grad_norm": "norm", "stepped": "stepped"}


def clip(model: nn.Module, norm: float | None, value: float | None) -> float:
    total = nn.utils.clip_grad_norm_(model.parameters(), norm or float("inf"))
    if value is not None:
        nn.utils.clip_grad_value_(model.parameters(), value)
    return float(total)


def overflowing(count: int) -> list[dict[str, Any]]:
    data = batches(count)
    data[2]["x"] *= 1e6
    return data


@pytest.mark.parametrize(("norm", "value"), [(0.1, None), (None, 0.001), (None, None)])
def test_a_step_that_a_scaler_passes_over_is_none(norm: float | None, value: float | None) -> None:
    model, twin = twins(mlp)
    built(model, sgd(), mixed_precision="fp16")
    network = TorchNetwork(supervised(model, clip_norm=norm, clip_value=value, outputs=TOLD))
    data = overflowing(5)
    results = run_all(network, data)
    optimizer, scaler = sgd()(twin.parameters()), torch.amp.GradScaler("cpu")
    for batch, result in zip(data, results, strict=True):
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(twin(batch["x"]), batch["t"])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        finite = all(bool(one.grad.isfinite().all()) for one in twin.parameters())
        total = clip(twin, norm, value)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert bool(result["stepped"]) is finite
        if finite:
            assert float(result["norm"]) == pytest.approx(total, rel=1e-3)
        else:
            assert not result["norm"].isfinite()
    assert [bool(one["stepped"]) for one in results] == [True, True, False, True, True]
    assert model.current_optimizer.scaler.get_scale() == scaler.get_scale()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


class Words(nn.Module):
    """(batch, length) of indices -> (batch, 4), with gradients that are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6, sparse=True)
        self.head = nn.Linear(6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(ids).mean(1))
        return out


@pytest.mark.parametrize(("norm", "value"), [(0.05, None), (None, 0.003)])
def test_sparse_gradients_are_clipped_as_dense_ones(
    norm: float | None, value: float | None
) -> None:
    model, twin = twins(Words)
    twin.table.sparse = False  # type: ignore[union-attr,unused-ignore]
    built(model, sgd())
    network = TorchNetwork(
        [
            ModelOp(model, "ids", "y"),
            LambdaOp(cross_entropy, ["y", "t"], "loss"),
            UpdateOp(model, "loss", clip_norm=norm, clip_value=value, outputs=TOLD),
        ]
    )
    source = torch.Generator().manual_seed(0)
    # with words that a batch has twice
    data = [
        {
            "ids": torch.randint(0, 20, (8, 5), generator=source),
            "t": torch.randint(0, 4, (8,), generator=source),
        }
        for _ in range(4)
    ]
    results = run_all(network, data)
    optimizer = sgd()(twin.parameters())
    for batch, result in zip(data, results, strict=True):
        cross_entropy(twin(batch["ids"]), batch["t"]).backward()
        total = clip(twin, norm, value)
        assert float(result["norm"]) == pytest.approx(total, rel=1e-5)
        optimizer.step()
        optimizer.zero_grad()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_two_updates_of_a_model_are_clipped_together() -> None:
    model, twin = twins(mlp)
    built(model, sgd())
    network = TorchNetwork(
        [
            ModelOp(model, "x", "y"),
            LambdaOp(cross_entropy, ["y", "t"], "loss"),
            LambdaOp(lambda y: (y**2).mean(), "y", "other"),
            UpdateOp(model, "loss", clip_norm=0.1),
            UpdateOp(model, "other", clip_norm=0.1, outputs=TOLD),
        ]
    )
    data = batches(4)
    results = run_all(network, data)
    optimizer = sgd()(twin.parameters())
    for batch, result in zip(data, results, strict=True):
        y = twin(batch["x"])
        (cross_entropy(y, batch["t"]) + (y**2).mean()).backward()
        assert float(result["norm"]) == pytest.approx(clip(twin, 0.1, None), rel=1e-5)
        optimizer.step()
        optimizer.zero_grad()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


class TestRest:
    """What becomes of steps that are merged, but too few, when a network is left."""

    @staticmethod
    def by_hand(twin: nn.Module, windows: list[list[dict[str, Any]]], norm: float = 1e9) -> None:
        optimizer = sgd()(twin.parameters())
        for window in windows:
            for batch in window:
                cross_entropy(twin(batch["x"]), batch["t"]).backward()
            for parameter in twin.parameters():
                assert parameter.grad is not None
                parameter.grad /= len(window)
            nn.utils.clip_grad_norm_(twin.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()

    def test_a_flush_that_fails_leaves_nothing(self) -> None:
        model, twin = twins(mlp)
        built(model, sgd())
        network = TorchNetwork(supervised(model, merge_grad=3, rest="flush"))
        data = batches(5)

        def fail(*args: Any) -> None:
            raise RuntimeError("no step today")

        with pytest.raises(RuntimeError, match="no step today"):  # noqa: PT012
            hook = model.current_optimizer.register_step_pre_hook(fail)
            run_all(network, data[:2])
        hook.remove()
        assert same_weights(model, twin)
        assert no_gradients(model)
        run_all(network, data[2:], epoch=2)
        self.by_hand(twin, [data[2:]])
        assert same_weights(model, twin)


def test_what_is_known_at_the_end_cannot_be_read_before() -> None:
    model = built(line, sgd(), model_name="m")
    ops = [
        ModelOp(model, "x", "y"),
        UpdateOp(model, "y", defer=True, outputs=TOLD),
        LambdaOp(lambda norm: norm * 2, "norm", "twice"),
    ]
    network = TorchNetwork(ops)
    with pytest.raises(
        ValueError, match=r"LambdaOp \(op 2.*'norm'.*UpdateOp.*defer=False"
    ) as caught:
        network(mode="train", epoch=1)
    assert network.explain("train").error == f"ValueError: {caught.value}"
    ops[1].defer = False
    (result,) = run_all(network, [{"x": torch.ones(2, 2)}])
    assert torch.equal(result["twice"], 2 * result["norm"])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clip_norm": 1.0}, "model 'm'.*clip_norm=1.0 and clip_norm=None"),
        ({"outputs": TOLD}, r"model 'm'.*outputs \['norm', 'stepped'\]"),
    ],
)
def test_updates_that_go_together_say_the_same(settings: dict[str, Any], text: str) -> None:
    model = built(line, sgd(), model_name="m")
    ops = [ModelOp(model, "x", "y"), UpdateOp(model, "y", **settings), UpdateOp(model, "y")]
    with pytest.raises(ValueError, match=text):
        TorchNetwork(ops)(mode="train", epoch=1)


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_with_a_closure_is_refused(scheduled: bool) -> None:
    source: Any = "lbfgs"
    if scheduled:
        source = EpochScheduler({1: "sgd", 2: "lbfgs"})
    model = built(line, source, model_name="m")
    with pytest.raises(ValueError, match=r"'m'.*LBFGS.*closure"):
        TorchNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "y")])


def test_a_count_of_outputs_that_was_changed_is_refused() -> None:
    model = built(line, sgd(), model_name="m")
    update = UpdateOp(model, "y", outputs=TOLD)
    update.outputs.append("more")
    with pytest.raises(ValueError, match=r"UpdateOp.*'m'.*'grad_norm'.*'stepped'.*'norm'.*'more'"):
        TorchNetwork([ModelOp(model, "x", "y"), update])
