"""Whatever raises, wherever: the network and its ops are as before, and can be used again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer, MeanUnslicer, Slicer
from tests.kernel.ops import shown
from tests.network.programs import (
    batches,
    built,
    is_free,
    line,
    losses,
    mlp,
    no_gradients,
    regression,
    run,
    run_all,
    same_weights,
    supervised,
    twins,
)
from tests.network.schedulers import MoodyScheduler, Trouble

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


def an_op_before_any_update() -> Case:
    model = built(line, "adam")
    ops = [LambdaOp(fail, ["x", "ok"], "x"), *regression(model)]
    return Case(TorchNetwork(ops), [model])


def an_op_after_a_merge() -> Case:
    model = built(line, "adam")
    ops = [*regression(model, merge_grad=2), LambdaOp(fail, ["y", "ok"], "z")]
    return Case(TorchNetwork(ops), [model])


def an_interrupted_op() -> Case:
    def interrupt(x: Any, ok: int) -> Any:
        if ok != 1:
            raise KeyboardInterrupt
        return x

    model = built(line, "adam")
    ops = two_updates(model)
    ops[-1] = LambdaOp(interrupt, ["x", "ok"], "z")
    return Case(TorchNetwork(ops), [model], KeyboardInterrupt)


def a_missing_key() -> Case:
    model = built(line)
    return Case(TorchNetwork(two_updates(model)), [model], KeyError, {"x": torch.ones(4, 2)})


def a_missing_key_of_postprocessing() -> Case:
    model = built(line)
    network = TorchNetwork(regression(model), NumpyLambdaOp(lambda ok: ok, "ok", "z"))
    return Case(network, [model], KeyError, {"x": torch.ones(4, 2)})


def too_few_outputs() -> Case:
    model = built(line)
    ops = two_updates(model)
    ops[-1] = LambdaOp(lambda y, ok: [y] * (ok + 1), ["y", "ok"], ["z", "w"])
    return Case(TorchNetwork(ops), [model], ValueError)


def postprocessing() -> Case:
    model = built(line)
    network = TorchNetwork(regression(model), NumpyLambdaOp(fail, ["y", "ok"], "z"))
    return Case(network, [model])


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


def an_update_without_an_optimizer() -> Case:
    model = built(line)
    optimizer = model.optimizer

    def forget() -> None:
        model.optimizer = model.current_optimizer = None

    def remember() -> None:
        model.optimizer = model.current_optimizer = optimizer

    return Case(
        TorchNetwork(two_updates(model)), [model], ValueError, before=forget, after=remember
    )


def an_update_whose_graph_is_gone() -> Case:
    """Somebody has taken the loss's graph, so the update's own gradients cannot be taken."""
    model = built(line)
    ops = two_updates(model)

    def spoil(loss: torch.Tensor, ok: int) -> torch.Tensor:
        if ok != 1:
            loss.backward()
        return loss

    ops.insert(2, LambdaOp(spoil, ["loss", "ok"], "loss"))
    return Case(TorchNetwork(ops), [model], RuntimeError)


def slicing() -> Case:
    model = built(line)
    slicers = [MoodySlicer(slice="ok"), AxisSlicer(axis=0, slice=None, unslice=["y", "loss"])]
    network = TorchNetwork(regression(model), slicers=slicers)
    return Case(network, [model], bad={**GOOD, "ok": 2})


def un_slicing() -> Case:
    model = built(line)
    slicers = [MoodySlicer(slice="ok"), AxisSlicer(axis=0, slice=None, unslice=["y", "loss"])]
    slicers[1] = MeanUnslicer(["y", "loss"])
    network = TorchNetwork(regression(model), slicers=slicers)
    return Case(network, [model], bad={**GOOD, "ok": 3})


def slicers_that_disagree() -> Case:
    model = built(line)
    slicers = [
        AxisSlicer(axis=0, slice="rows", unslice=None),
        MoodySlicer(slice="ok"),
        MeanUnslicer(["y", "loss"]),
    ]
    network = TorchNetwork(regression(model), slicers=slicers)
    case = Case(network, [model], ValueError, bad={**GOOD, "rows": torch.ones(3)})
    return case


def slicers_that_clash() -> Case:
    model = built(line)
    slicers = [
        AxisSlicer(axis=0, slice="rows", unslice=None, mode="test"),
        AxisSlicer(axis=1, slice="rows", unslice=None, mode="test"),
    ]
    network = TorchNetwork(regression(model), slicers=slicers)
    return Case(network, [model], ValueError, opening={"mode": "test"})


def keys_left_in_pieces() -> Case:
    model = built(line)
    network = TorchNetwork(
        regression(model), slicers=AxisSlicer(axis=0, slice="x", unslice=None, mode="test")
    )
    return Case(network, [model], ValueError, opening={"mode": "test"})


def a_scheduler() -> Case:
    model = built(line)
    network = TorchNetwork([*regression(model), MoodyScheduler(LambdaOp(lambda x: x, "x", "z"))])
    return Case(network, [model], opening={"epoch": 13})


def a_scheduler_of_optimizers() -> Case:
    model = built(line, MoodyScheduler("sgd"))
    return Case(TorchNetwork(two_updates(model)), [model], opening={"epoch": 13})


def an_op_that_is_no_op() -> Case:
    model = built(line)
    network = TorchNetwork(regression(model))
    return Case(
        network,
        [model],
        Exception,
        before=lambda: network.ops.append(3),
        after=lambda: network.ops.remove(3),
    )


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
    an_op_before_any_update,
    an_op_after_a_merge,
    an_interrupted_op,
    a_missing_key,
    a_missing_key_of_postprocessing,
    too_few_outputs,
    postprocessing,
    a_deferred_update,
    an_update_at_once,
    an_update_without_an_optimizer,
    an_update_whose_graph_is_gone,
    slicing,
    un_slicing,
    slicers_that_disagree,
]
IN_OPENING = [
    slicers_that_clash,
    keys_left_in_pieces,
    a_scheduler,
    a_scheduler_of_optimizers,
    an_op_that_is_no_op,
    an_op_that_cannot_be_set_up,
]


def settings(network: TorchNetwork) -> list[Any]:
    """What an opening might leave behind on ops."""
    return [
        (getattr(op, "retain_graph", None), getattr(op, "defer", None), set(vars(op)))
        for op in network.ops
        if hasattr(op, "fe_retain_graph")
    ]


class TestAfterAFailure:
    @pytest.mark.parametrize("make", IN_A_STEP + IN_OPENING)
    def test_it_can_be_entered_again(self, make: Callable[[], Case]) -> None:
        case = make()
        good = {**GOOD, "rows": torch.ones(2)}
        expected = settings(case.network)
        for _ in range(3):
            case.before()
            with pytest.raises(case.error), case.opened(**case.opening):
                case.network.run_step(case.bad)
            case.after()
            assert is_free(case.network)
            assert no_gradients(*case.models)
            assert settings(case.network) == expected
            assert torch.is_grad_enabled()
            with case.opened():
                assert set(case.network.run_step(good)) > {"x", "ok", "rows"}
            assert is_free(case.network)
            assert no_gradients(*case.models)
            assert settings(case.network) == expected

    @pytest.mark.parametrize("make", IN_A_STEP)
    def test_a_step_that_failed_leaves_the_opening_whole(self, make: Callable[[], Case]) -> None:
        case = make()
        good = {**GOOD, "rows": torch.ones(2)}
        with case.opened():
            for _ in range(3):
                case.before()
                with pytest.raises(case.error):
                    case.network.run_step(case.bad)
                case.after()
                assert no_gradients(*case.models)
                assert not case.network.ctx_state["deferred"]
                assert set(case.network.run_step(good)) > {"x", "ok", "rows"}
        assert is_free(case.network)

    @pytest.mark.parametrize("make", IN_A_STEP + IN_OPENING)
    def test_the_callers_batch_is_whole(self, make: Callable[[], Case]) -> None:
        case = make()
        bad = dict(case.bad)
        case.before()
        with pytest.raises(case.error), case.opened(**case.opening):
            case.network.run_step(bad)
        assert list(bad) == list(case.bad)
        assert all(bad[key] is value for key, value in case.bad.items())

    @pytest.mark.parametrize("make", IN_A_STEP + IN_OPENING)
    def test_no_value_of_the_step_is_kept(self, make: Callable[[], Case]) -> None:
        case = make()
        bad = dict(case.bad)
        bad["x"] = torch.ones(4, 2)
        watched = weakref.ref(bad["x"])
        case.before()
        try:
            with case.opened(**case.opening):
                case.network.run_step(bad)
        except case.error:
            pass
        del bad
        gc.collect()
        assert watched() is None


class TestAFailedStepCountsForNothing:
    def test_in_training(self) -> None:
        """The failed steps are gone without a trace: the good ones alone make the weights."""
        model, twin = twins(mlp)
        for each in (model, twin):
            built(each, "adam")
        check = LambdaOp(fail, ["y", "ok"], "z")
        network = TorchNetwork([*supervised(model, defer=True), check])
        plain = TorchNetwork(supervised(twin))
        data = batches(9)
        seen = []
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data):
                try:
                    seen.append(network.run_step({**batch, "ok": step % 3}))
                except Trouble:
                    assert step % 3 != 1
        good = data[1::3]
        assert losses(seen) == losses(run_all(plain, good))
        assert same_weights(model, twin)

    def test_in_accumulation(self) -> None:
        model, twin = twins(mlp)
        for each in (model, twin):
            built(each, "adam")
        check = LambdaOp(fail, ["y", "ok"], "z")
        network = TorchNetwork([*supervised(model, merge_grad=2, defer=True), check])
        plain = TorchNetwork(supervised(twin, merge_grad=2))
        data = batches(12)
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data):
                try:
                    network.run_step({**batch, "ok": step % 3})
                except Trouble:
                    assert step % 3 != 1
        run_all(plain, data[1::3])
        assert same_weights(model, twin)

    def test_but_an_update_that_has_taken_place(self) -> None:
        """The op that raises comes after the update, which nobody can take back."""
        model, twin = twins(mlp)
        for each in (model, twin):
            built(each, "adam")
        check = LambdaOp(fail, ["y", "ok"], "z")
        network = TorchNetwork([*supervised(model, merge_grad=2), check])
        plain = TorchNetwork(supervised(twin, merge_grad=2))
        data = batches(6)
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data):
                try:
                    # every second step updates, and these fail
                    network.run_step({**batch, "ok": 1 - step % 2})
                except Trouble:
                    assert step % 2
        run_all(plain, data)
        assert same_weights(model, twin)


class TestWhoRaised:
    """An error keeps its type, and says which op it comes from."""

    def noted(self, network: TorchNetwork, batch: Any, mode: str = "train") -> str:
        with pytest.raises(Trouble) as caught:
            run(network, batch, mode)
        assert caught.value.args[0].startswith("as told")
        return shown(caught.value)

    def test_an_op(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y"), LambdaOp(fail, ["y", "ok"], ["z"])]
        )
        assert self.noted(network, {"x": 1, "ok": 0}) == (
            "as told\nRaised by LambdaOp (op 1, inputs ['y', 'ok'], outputs ['z'])."
        )

    def test_each_step_says_it_once(self) -> None:
        error = Trouble("as told")

        def fail_alike(x: Any) -> Any:
            raise error

        network = TorchNetwork([LambdaOp(fail_alike, "x", "y")])
        for _ in range(3):
            assert self.noted(network, {"x": 1}) == (
                "as told\nRaised by LambdaOp (op 0, inputs ['x'], outputs ['y'])."
            )

    def test_an_op_among_minibatches(self) -> None:
        network = TorchNetwork(
            [LambdaOp(fail, ["x", "ok"], "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice="y"),
        )
        assert self.noted(network, {"x": torch.ones(2), "ok": 0}) == (
            "as told\nRaised by LambdaOp (op 0, inputs ['x', 'ok'], outputs ['y'])."
        )

    def test_a_slicer(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            slicers=[MoodySlicer(slice="ok"), MeanUnslicer("y")],
        )
        assert self.noted(network, {"x": torch.ones(2), "ok": 2}) == (
            "as told\nRaised by MoodySlicer while it sliced ['ok']."
        )
        assert self.noted(network, {"x": torch.ones(2), "ok": 3}) == (
            "as told\nRaised by MoodySlicer while it un-sliced 'ok'."
        )

    def test_a_postprocessing_op(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            postprocessing=[
                NumpyLambdaOp(lambda y: y, "y", "w"),
                NumpyLambdaOp(fail, ["w", "ok"], "z"),
            ],
        )
        text = self.noted(network, {"x": torch.ones(2), "ok": 0})
        assert "Raised by LambdaOp (op 1, inputs ['w', 'ok'], outputs ['z'])" in text
        assert "postprocessing" in text

    @pytest.mark.parametrize("defer", [True, False])
    def test_an_update(self, defer: bool) -> None:
        model = built(line, lambda params: MoodyOptimizer(params, lr=0.1), model_name="moody")
        model.current_optimizer.moody = True
        network = TorchNetwork([*regression(model, defer=defer), LambdaOp(lambda x: x, "x", "z")])
        text = self.noted(network, {"x": torch.ones(4, 2)})
        assert "'moody'" in text or "UpdateOp (op 2, inputs ['loss'])" in text
