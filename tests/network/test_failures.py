"""Whatever raises, wherever: the network and its ops are as before, and can be used again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import MeanUnslicer, Slicer
from tests.kernel.ops import shown
from tests.network.programs import (
    batches,
    built,
    is_free,
    line,
    mlp,
    no_gradients,
    regression,
    run,
    run_all,
    same_weights,
    supervised,
    twins,
)
from tests.network.schedulers import Trouble

GOOD = {"x": torch.ones(4, 2), "ok": 1}


def fail(*values: Any) -> Any:
    """Raise where an "ok" among the values is not 1."""
    if values[-1] != 1:
        raise Trouble("as told")
    return values[0]


class MoodyOptimizer(torch.optim.SGD):
    """Raises while its `moody` is set."""

    moody = False

    def step(self, closure: Any = None) -> None:
        if self.moody:
            raise Trouble("as told")
        super().step()


class MoodySlicer(Slicer):
    """Raises for a batch, or a minibatch, whose "ok" is not 1."""

    def _slice_batch(self, batch: Any) -> list[Any]:
        if batch == 2:
            raise Trouble("as told")
        return [batch, batch]

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        if slices[0] == 3:
            raise Trouble("as told")
        return slices[0]


class MoodyGradients(TensorOp):
    """Has a setting that cannot be set while `moody` is."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.moody = False

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        if self.moody and retain is not None:
            raise Trouble("as told")
        return False


@dataclass
class Case:
    """A network, a way to make it fail, and a way back."""

    network: TorchNetwork
    models: list[Any]
    error: type[BaseException] = Trouble
    bad: dict[str, Any] = field(default_factory=lambda: {**GOOD, "ok": 0})
    opening: dict[str, Any] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    def opened(self, **changes: Any) -> Any:
        return self.network(**{"mode": "train", "epoch": 1, **changes})


def two_updates(model: Any) -> list[Any]:
    """An update at once, one that is put off, and after it an op that may fail."""
    return [
        *regression(model),
        LambdaOp(lambda y: y.abs().mean(), "y", "size"),
        UpdateOp(model, "size", defer=True),
        LambdaOp(fail, ["y", "ok"], "z"),
    ]


def an_op() -> Case:
    model = built(line, "adam")
    return Case(TorchNetwork(two_updates(model)), [model])


def a_deferred_update() -> Case:
    """Of two that are put off, the first raises: the second one's gradients are not left either."""
    models = [
        built(line, lambda params: MoodyOptimizer(params, lr=0.1), model_name=name)
        for name in ("one", "two")
    ]
    ops: list[Any] = [ModelOp(model, "x", name) for model, name in zip(models, "ab", strict=True)]
    ops += [LambdaOp(lambda y: y.abs().mean(), name, f"loss_{name}") for name in "ab"]
    ops += [UpdateOp(model, f"loss_{name}") for model, name in zip(models, "ab", strict=True)]

    def moody(mood: bool) -> Callable[[], None]:
        return lambda: setattr(models[0].current_optimizer, "moody", mood)

    return Case(TorchNetwork(ops), models, before=moody(True), after=moody(False))


def an_update_at_once() -> Case:
    model = built(line, lambda params: MoodyOptimizer(params, lr=0.1))

    def moody(mood: bool) -> Callable[[], None]:
        return lambda: setattr(model.current_optimizer, "moody", mood)

    ops = [*regression(model), LambdaOp(lambda x: x, "x", "z")]
    return Case(TorchNetwork(ops), [model], before=moody(True), after=moody(False))


def sliced(ok: int) -> Case:
    model = built(line)
    slicers = [MoodySlicer(slice="ok"), MeanUnslicer(["y", "loss"])]
    network = TorchNetwork(regression(model), slicers=slicers)
    return Case(network, [model], bad={**GOOD, "ok": ok})


def slicing() -> Case:
    return sliced(2)


def un_slicing() -> Case:
    return sliced(3)


def an_op_that_cannot_be_set_up() -> Case:
    model = built(line)
    moody = MoodyGradients("x", "z")
    return Case(
        TorchNetwork([*two_updates(model), moody]),
        [model],
        before=lambda: setattr(moody, "moody", True),
        after=lambda: setattr(moody, "moody", False),
    )


IN_A_STEP = [
    an_op,
    a_deferred_update,
    an_update_at_once,
    slicing,
    un_slicing,
]
IN_OPENING = [an_op_that_cannot_be_set_up]


def settings(network: TorchNetwork) -> list[Any]:
    """What an opening might leave behind on ops."""
    return [
        (getattr(op, "retain_graph", None), getattr(op, "defer", None), set(vars(op)))
        for op in network.ops
        if hasattr(op, "fe_retain_graph")
    ]


@pytest.mark.parametrize("make", IN_A_STEP + IN_OPENING)
def test_the_network_can_be_entered_again(make: Callable[[], Case]) -> None:
    case = make()
    expected = settings(case.network)
    for _ in range(3):
        case.before()
        bad = {**case.bad, "x": torch.ones(4, 2)}
        kept, watched = dict(bad), weakref.ref(bad["x"])
        try:
            with case.opened(**case.opening):
                case.network.run_step(bad)
        except case.error:
            pass
        else:
            pytest.fail("the step did not raise")
        assert all(bad[key] is value for key, value in kept.items())
        del bad, kept
        gc.collect()
        assert watched() is None
        case.after()
        assert is_free(case.network)
        assert no_gradients(*case.models)
        assert settings(case.network) == expected
        assert torch.is_grad_enabled()
        with case.opened():
            assert set(case.network.run_step(GOOD)) > {"x", "ok"}
        assert is_free(case.network)
        assert settings(case.network) == expected


@pytest.mark.parametrize("make", IN_A_STEP)
def test_a_step_that_fails_leaves_the_network_open(make: Callable[[], Case]) -> None:
    case = make()
    with case.opened():
        for _ in range(3):
            case.before()
            with pytest.raises(case.error):
                case.network.run_step(case.bad)
            case.after()
            assert no_gradients(*case.models)
            assert not case.network.ctx_state["deferred"]
            assert set(case.network.run_step(GOOD)) > {"x", "ok"}


@pytest.mark.parametrize(("failing", "merged"), [(0, 1), (1, 0)])
def test_merged_gradients_when_a_deferred_update_fails(failing: int, merged: int) -> None:
    """Those of the failed step do not count, unless the model was updated with them before."""
    case = a_deferred_update()
    first, second = case.network.ops[-2:]
    for op in (first, second):
        op.merge_grad = 2
    case.models[0].current_optimizer.moody = False
    with case.opened():
        case.network.run_step(GOOD)
        case.models[failing].current_optimizer.moody = True
        with pytest.raises(case.error):
            case.network.run_step(GOOD)
    assert first.state_dict()["merged"] == merged
    assert second.state_dict()["merged"] == 1


def test_an_update_before_the_op_that_fails_counts() -> None:
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


@pytest.mark.parametrize("defer", [True, False])
def test_an_update_that_raises_is_named(defer: bool) -> None:
    model = built(line, lambda params: MoodyOptimizer(params, lr=0.1), model_name="moody")
    model.current_optimizer.moody = True
    network = TorchNetwork([*regression(model, defer=defer), LambdaOp(lambda x: x, "x", "z")])
    with pytest.raises(Trouble, match="as told") as caught:
        run(network, {"x": torch.ones(4, 2)}, "train")
    text = shown(caught.value)
    assert "'moody'" in text or "UpdateOp (op 2, inputs ['loss'])" in text
