"""Whatever raises, wherever: the network and its ops are as before, and can be used again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Repeat
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import (
    batches,
    built,
    is_free,
    line,
    mlp,
    no_gradients,
    run_all,
    same_weights,
    sgd,
    supervised,
    twins,
)
from tests.network.schedulers import Trouble

Patch = pytest.MonkeyPatch


def two_models(**update: Any) -> TorchNetwork:
    """Two models, whose updates are deferred."""
    models = [built(line, "adam", model_name=name) for name in ("one", "two")]
    ops: list[Any] = [ModelOp(model, "x", f"y{i}") for i, model in enumerate(models)]
    ops += [LambdaOp(lambda y: y.abs().mean(), f"y{i}", f"loss{i}") for i in range(2)]
    ops += [UpdateOp(model, f"loss{i}", **update) for i, model in enumerate(models)]
    return TorchNetwork(ops)


def in_an_op(patch: Patch, network: TorchNetwork, fail: Any) -> None:
    patch.setattr(network.ops[1], "forward", fail)


def in_the_backward_pass(patch: Patch, network: TorchNetwork, fail: Any) -> None:
    patch.setattr(torch.Tensor, "backward", fail)
    patch.setattr(torch.autograd, "backward", fail)


def in_the_first_deferred_update(patch: Patch, network: TorchNetwork, fail: Any) -> None:
    patch.setattr(network.models[0].current_optimizer, "step", fail)


def in_setting_up_an_op(patch: Patch, network: TorchNetwork, fail: Any) -> None:
    patch.setattr(UpdateOp, "fe_retain_graph", fail)


def settings(network: TorchNetwork) -> list[Any]:
    """Return what an entry might leave behind on ops."""
    return [
        (getattr(op, "retain_graph", None), getattr(op, "defer", None), set(vars(op)))
        for op in network.ops
    ]


@pytest.mark.parametrize("kind", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize(
    "where",
    [
        in_an_op,
        in_the_backward_pass,
        in_the_first_deferred_update,
        in_setting_up_an_op,
    ],
)
def test_the_network_can_be_entered_again(
    where: Callable[..., None], kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise kind("as told")

    network = two_models()
    expected = settings(network)
    for _ in range(2):
        batch = {"x": torch.ones(4, 2)}
        watched = weakref.ref(batch["x"])
        with monkeypatch.context() as patch:
            where(patch, network, fail)
            try:
                with network("train"):
                    network.run_step(batch)
            except kind:
                pass
            else:
                pytest.fail("the step did not raise")
        del batch
        gc.collect()
        assert watched() is None
        assert is_free(network)
        assert settings(network) == expected
        assert no_gradients(*network.models)
        assert torch.is_grad_enabled()
        with network("train"):
            assert "loss1" in network.run_step({"x": torch.ones(4, 2)})
        assert settings(network) == expected


def test_a_profile_that_is_interrupted() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
    with pytest.raises(KeyboardInterrupt), fastnet.profile(network), network("infer"):
        raise KeyboardInterrupt
    assert is_free(network)
    with fastnet.profile(network) as profile, network("infer"):
        network.run_step({"x": 1})
    assert profile.rows


@pytest.mark.parametrize(("failing", "merged"), [(0, 1), (1, 0)])
def test_merged_gradients_when_a_deferred_update_fails(
    failing: int, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the failed step do not count, unless the model was updated with them before."""
    network = two_models(merge_grad=2)
    batch = {"x": torch.ones(4, 2)}

    def fail(closure: Any = None) -> None:
        raise Trouble("as told")

    with network("train"):
        network.run_step(batch)
        monkeypatch.setattr(network.models[failing].current_optimizer, "step", fail)
        with pytest.raises(Trouble):
            network.run_step(batch)
    first, second = network.ops[-2:]
    assert first.state_dict()["merged"] == merged
    assert second.state_dict()["merged"] == 1


def test_windows_to_drop_are_carried_if_a_flush_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network = two_models(merge_grad=3)
    for update, rest in zip(network.ops[-2:], ("drop", "flush"), strict=True):
        update.rest = rest

    def fail(closure: Any = None) -> None:
        raise Trouble("as told")

    with monkeypatch.context() as patch, pytest.raises(Trouble), network("train"):  # noqa: PT012
        network.run_step({"x": torch.ones(4, 2)})
        patch.setattr(network.models[1].current_optimizer, "step", fail)
    assert [update.state_dict()["merged"] for update in network.ops[-2:]] == [1, 1]
    with network("train"):
        pass
    assert [update.state_dict()["merged"] for update in network.ops[-2:]] == [0, 0]


def test_error_of_a_flush_is_raised_if_cleaning_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network = two_models(merge_grad=3, rest="flush")
    first, second = (model.current_optimizer for model in network.models)

    def refuse(set_to_none: bool = True) -> None:
        raise ArithmeticError("cannot clear")

    def fail(closure: Any = None) -> None:
        monkeypatch.setattr(first, "zero_grad", refuse)
        raise Trouble("as told")

    monkeypatch.setattr(second, "step", fail)
    with pytest.raises(Trouble, match="as told"), network("train"):
        network.run_step({"x": torch.ones(4, 2)})
    assert [update.state_dict()["merged"] for update in network.ops[-2:]] == [0, 1]


def test_an_update_before_the_op_that_fails_counts() -> None:
    def fail(y: Any, ok: int) -> Any:
        if not ok:
            raise Trouble("as told")
        return y

    model, twin = twins(mlp)
    for each in (model, twin):
        built(each, "adam")
    check = LambdaOp(fail, ["y", "ok"], "z")
    network = TorchNetwork([*supervised(model, merge_grad=2), check])
    plain = TorchNetwork(supervised(twin, merge_grad=2))
    data = batches(6)
    with network(mode="train", epoch=1):
        for step, batch in enumerate(data):
            # Every second step updates, and these fail.
            with pytest.raises(Trouble) if step % 2 else nullcontext():
                network.run_step({**batch, "ok": 1 - step % 2})
    run_all(plain, data)
    assert same_weights(model, twin)


def test_failed_step_forgets_only_what_was_merged_after_the_update() -> None:
    class FailAfterUpdates(TensorOp):
        fails = False

        def forward(self, data: Any, state: dict[str, Any]) -> Any:
            if self.fails:
                state["deferred"]["others"] = [self.fail]
            return data

        def fail(self) -> None:
            raise Trouble("as told")

    model, twin = twins(mlp)
    built(model, sgd())
    *ops, update = supervised(model, merge_grad=3, defer=True)
    failing = FailAfterUpdates("loss", "seen")
    network = TorchNetwork([*ops, Repeat(update, repeat=2), failing])
    first, second, third = batches(3)
    with network(mode="train", epoch=1):
        network.run_step(first)
        failing.fails = True
        with pytest.raises(Trouble):
            network.run_step(second)
        # The third gradient was of this step, and so were those merged after the update.
        assert update.state_dict()["merged"] == 0
        failing.fails = False
        network.run_step(third)
        network.run_step(third)
    optimizer = sgd()(twin.parameters())
    for merged in ((first, first, second), (third, third, third)):
        optimizer.zero_grad()
        for batch in merged:
            (cross_entropy(twin(batch["x"]), batch["t"]) / 3).backward()
        optimizer.step()
    for own, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, expected)
