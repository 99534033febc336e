"""UpdateOp in torch: kept graphs, gradients of several models, clipping, and errors."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.checkpoint import checkpoint

import fastnet
from fastnet import CompileOptions
from fastnet.backend import update_model
from fastnet.compat import v1
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, Sometimes
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network import programs
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
    sgd,
    supervised,
    twins,
    weights,
)

X = {"x": torch.ones(3, 2)}


class TestMaking:
    def test_gradients_of_a_model_of_mixed_precision(self) -> None:
        model = built(line, mixed_precision=True, model_name="m")
        with pytest.raises(
            ValueError, match=r"UpdateOp.*'m'.*'g'.*`gradients`.*mixed_precision=False\."
        ):
            UpdateOp(model, "loss", gradients="g")
        # a refused op leaves no mark on the model
        assert not hasattr(model, "loss_name")

    def test_merging_on_several_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        UpdateOp(built(line, model_name="m"), "loss", merge_grad=2)
        model = built(lambda: torch.nn.DataParallel(line()), model_name="m")
        UpdateOp(model, "loss", merge_grad=1)
        with pytest.raises(ValueError, match=r"UpdateOp.*'m'.*merge_grad=2.*merge_grad=1\."):
            UpdateOp(model, "loss", merge_grad=2)


def loss_of(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    """Return the loss of a batch, of a model like `mlp`."""
    return lambda batch: cross_entropy(model(batch["x"]), batch["t"])


class TestGradientsFromBeforeTraining:
    """They do not count: entering "train" sets them to None."""

    @pytest.mark.parametrize("compile", [False, CompileOptions(backend="eager")])
    @pytest.mark.parametrize("merge", [1, 2])
    def test_of_backward_before_loop(self, compile: Any, merge: int) -> None:
        model, twin = twins(mlp)
        network = TorchNetwork(supervised(built(model, sgd()), merge_grad=merge), compile=compile)
        data = batches(8)
        loss_of(model)(data[0]).backward()
        run_all(network, data[:4])
        loss_of(model)(data[0]).backward()
        run_all(network, data[4:], epoch=2)
        by_hand(twin, [data[at : at + merge] for at in range(0, 8, merge)], loss_of(twin))
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)

    @pytest.mark.parametrize("scheduled", [False, True])
    def test_of_layer_that_optimizer_gets_later(self, scheduled: bool) -> None:
        """A hand-written loop calls `zero_grad` when the group has been added."""
        model, twin = twins(lambda: nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)))
        source: Any = lambda _: torch.optim.SGD(model[1].parameters(), lr=0.1)  # noqa: E731
        if scheduled:
            source = [source, lambda _: torch.optim.SGD(model.parameters(), lr=0.1)]
            source = EpochScheduler(dict(enumerate(source, 1)))
        network, data = TorchNetwork(supervised(built(model, source))), batches(6)
        run_all(network, data[:3])
        assert model[0].weight.grad is not None
        if not scheduled:
            model.optimizer.add_param_group({"params": list(model[0].parameters())})
        run_all(network, data[3:], epoch=2)
        for epoch, layers in ((0, twin[1]), (1, twin)):
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
            for batch in data[3 * epoch : 3 * epoch + 3]:
                optimizer.zero_grad()
                loss_of(twin)(batch).backward()
                optimizer.step()
        assert same_weights(model, twin)

    @pytest.mark.parametrize("context", [{"mode": "train", "warmup": True}, {"mode": "eval"}])
    def test_stay_without_training(self, context: Any) -> None:
        model = built(mlp, sgd())
        gradients = {one: torch.ones_like(one) for one in model.parameters()}
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        run_all(TorchNetwork(supervised(model)), batches(1), **context)
        assert all(one.grad is gradient for one, gradient in gradients.items())

    @pytest.mark.parametrize("outer", ["current", "v1"])
    def test_of_step_around_entry_stay(self, outer: str) -> None:
        """An op opens another network while an update of its own step is deferred."""
        model, twin = twins(mlp)
        made, seen = TorchNetwork(supervised(built(model, sgd()))[:1]), []

        def enter(x: torch.Tensor) -> torch.Tensor:
            seen.append(run(made, {"x": x}, "train")["y"])
            return x

        first, loss, update = supervised(model, defer=True)
        ops, data = [first, loss, update, LambdaOp(enter, "x", "x")], batches(3)
        if outer == "v1":
            old = v1.Network(ops)
            old.load_epoch("train", 1)
            for batch in data:
                old.run_step(batch)
            old.unload_epoch()
        else:
            run_all(TorchNetwork(ops), data)
        by_hand(twin, [[one] for one in data], loss_of(twin))
        assert len(seen) == 3
        assert same_weights(model, twin)


@pytest.mark.parametrize("merge", [1, 2])
def test_a_graph_is_kept_for_as_long_as_a_later_op_takes_gradients_of_it(merge: int) -> None:
    model = built(line)
    again = LambdaOp(lambda loss: loss.backward(), "loss")
    ops = regression(model, merge_grad=merge)
    for late in (
        [*ops, UpdateOp(model, "loss", defer=True), again],
        [*ops, again],
        # the update itself comes too late, as `again` keeps nothing
        [*ops, again, UpdateOp(model, "loss", defer=True)],
        # a later update or op of updates that is given gradients needs no graph
        [*ops, again, UpdateOp(model, "loss", gradients="g")],
        [*ops, again, Fuse([UpdateOp(model, "loss", gradients="g")])],
        [*ops[:2], Fuse([ops[2], UpdateOp(model, "loss", gradients="g")]), again],
    ):
        with pytest.raises(RuntimeError):
            run(TorchNetwork(late), {**X, "g": [torch.ones(1, 2), torch.ones(1)]}, "train")
        assert no_gradients(model)


def test_a_derived_update_with_a_forward_of_its_own() -> None:
    """It sees the settings that the network has for it, and they are not kept."""
    seen: list[Any] = []

    class Own(UpdateOp):
        def forward(self, data: Any, state: Any) -> None:
            seen.append((self.defer, self.retain_graph))
            super().forward(data, state)

    model, twin = twins(line)
    *ops, update = regression(built(model, sgd(0.1)))
    own = Own(model, "loss")
    run(TorchNetwork([*ops, own, update]), X, "train")
    assert seen == [(True, True)]
    assert (own.defer, own.retain_graph) == (False, False)
    by_hand(twin, [[X]], lambda one: 2 * (twin(one["x"]) ** 2).mean())
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class TestErrorsOfAStep:
    def after(self, network: TorchNetwork, *models: nn.Module) -> None:
        assert is_free(network)
        assert no_gradients(*models)

    @pytest.mark.parametrize("merge", [1, 2])
    def test_variables_that_an_earlier_update_has_overwritten(self, merge: int) -> None:
        first = built(lambda: nn.Linear(2, 2), model_name="first")
        second = built(lambda: nn.Linear(2, 1), model_name="second")
        ops: list[Any] = [
            ModelOp(first, "x", "h"),
            ModelOp(second, "h", "y"),
            LambdaOp(lambda y: (y**2).mean(), "y", "loss"),
            UpdateOp(second, "loss"),
            UpdateOp(first, "loss", merge_grad=merge),
        ]
        after = LambdaOp(lambda y: y, "y", "z")
        network = TorchNetwork([*ops, after])
        with pytest.raises(RuntimeError) as caught:
            run(network, X, "train")
        text = "".join(traceback.format_exception(caught.value))
        assert re.search(r"gradients of 'first'.*defer=True to the UpdateOps", text)
        self.after(network, first, second)
        # The advice of the error; a network defers the last updates by itself.
        ops[3].defer = True
        run(network, X, "train")
        ops[3].defer = False
        run(TorchNetwork(ops), X, "train")

    def test_a_tensor_that_an_op_has_overwritten(self) -> None:
        model = built(lambda: nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()), model_name="m")
        overwriting = LambdaOp(lambda y: y.add_(1).mean(), "y", "loss")
        network = TorchNetwork([ModelOp(model, "x", "y"), overwriting, UpdateOp(model, "loss")])
        with pytest.raises(RuntimeError) as caught:
            run(network, X, "train")
        text = "".join(traceback.format_exception(caught.value))
        assert "gradients of 'm'" in text
        assert "defer=True" not in text
        self.after(network, model)


class TestALossThatDoesNotReachTheModel:
    def network(self, model: Any, **update: Any) -> TorchNetwork:
        ops = regression(model, **update)
        other = built(line)
        ops[1] = LambdaOp(lambda x: other(x).mean(), "x", "loss")
        return TorchNetwork(ops)

    def test_warns_once_a_context_and_changes_nothing(self) -> None:
        model = built(line, model_name="m")
        network = self.network(model)
        before = weights(model)
        for epoch in (1, 2):
            with pytest.warns(
                UserWarning, match=r"UpdateOp.*'m'.*'loss'.*ModelOp of 'm'"
            ) as caught:
                run_all(network, [X] * 3, epoch=epoch)
            assert [one.filename for one in caught] == [programs.__file__]
        assert same_weights(model, before)

    def test_the_datasets_of_the_op_are_named(self) -> None:
        model = built(line, model_name="m")
        network = self.network(model, ds_id=["a", "b"])
        with pytest.warns(
            UserWarning, match=r"'m', which runs for ds_id 'a' or 'b' only"
        ) as caught:
            run_all(network, [X], ds_id="a")
        assert len(caught) == 1


def test_given_gradients_are_not_held_on_to() -> None:
    """A buffer that the program fills anew each step counts with what it held at the time."""
    model = built(line, sgd(1.0))
    before = weights(model)
    buffer = [torch.zeros(1, 2), torch.zeros(1)]
    network = TorchNetwork([UpdateOp(model, "loss", gradients="g", merge_grad=2)])
    with network(mode="train", epoch=1):
        for value in (1.0, 5.0):
            for gradient in buffer:
                gradient.fill_(value)
            network.run_step({"g": buffer})
            assert all(bool((gradient == value).all()) for gradient in buffer)
    torch.testing.assert_close(model.weight.detach(), before["weight"] - 3)
    torch.testing.assert_close(model.bias.detach(), before["bias"] - 3)


def test_an_optimizer_inside_of_the_backward_pass() -> None:
    """Hooks that step during backward consume the gradients, which is not reported as an error."""
    model, twin = twins(mlp)
    built(model, sgd(0.0))
    rates = {id(one): torch.optim.SGD([one], lr=0.1) for one in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        rates[id(parameter)].step()
        rates[id(parameter)].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    data = batches(4)
    run_all(TorchNetwork(supervised(model)), data)
    by_hand(twin, [[one] for one in data], lambda one: cross_entropy(twin(one["x"]), one["t"]))
    assert same_weights(model, twin)


def widen_anew(model: Any, optimizer: Any) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def test_gradients_of_parameters_that_are_gone() -> None:
    model = built(line, sgd(), model_name="m")
    network = TorchNetwork(regression(model, merge_grad=2))
    text = "UpdateOp of 'm' has merged gradients of 2 parameters.*are lost"
    with network(mode="train", epoch=1):
        network.run_step({"x": torch.ones(3, 2)})
        widen_anew(model, model.current_optimizer)
        before = weights(model)
        with pytest.warns(UserWarning, match=text) as caught:
            network.run_step({"x": torch.ones(3, 2).double()})
    assert [one.filename for one in caught] == [__file__]
    assert not same_weights(model, before)


def test_merged_gradients_keep_no_graph() -> None:
    """Gradients that are given may have one, which would keep every step alive until the update."""
    model = built(line, sgd())
    take = LambdaOp(
        lambda loss: list(torch.autograd.grad(loss, list(model.parameters()), create_graph=True)),
        "loss",
        "g",
        mode="train",
    )
    *ops, update = regression(model, gradients="g", merge_grad=3)
    run_all(TorchNetwork([*ops, take, update]), [{"x": torch.ones(3, 2)}] * 2)
    merged = update.state_dict()
    assert merged["merged"] == 2
    assert not any(total.requires_grad for total in merged["gradients"])


@pytest.mark.parametrize("settings", [{}, {"merge_grad": 2}, {"weight": "count"}])
def test_deferred_functions_are_under_names_of_models(settings: dict[str, Any]) -> None:
    """Ops of FastEstimator read them."""
    seen: list[dict[str, int]] = []

    class Look(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            seen.append({name: len(functions) for name, functions in state["deferred"].items()})
            return data

    model = built(line, sgd(), model_name="m")
    ops = regression(model, defer=True, **settings)
    network = TorchNetwork([*ops, Look("x", "x", mode="train")])
    run_all(network, [{"x": torch.ones(3, 2), "count": torch.tensor(3)}] * 2)
    first = {} if "merge_grad" in settings else {"m": 1}
    assert seen == [first, {"m": 1}]


class Checkpointed(nn.Sequential):
    """Layers that are run anew for their gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().forward, x, use_reentrant=True)
        return out


def checkpointed() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), Checkpointed(nn.Linear(16, 4)))


@pytest.mark.parametrize(
    ("critic", "merge", "held"), [(mlp, 1, False), (mlp, 3, True), (checkpointed, 1, True)]
)
def test_gradients_that_another_model_holds_stay(
    critic: Callable[[], nn.Module], merge: int, held: bool
) -> None:
    """Its update may be in another epoch, or the program's own."""
    made = built(lambda: nn.Linear(16, 16), sgd(), model_name="maker")
    judge = built(critic, sgd(), model_name="critic")
    network = TorchNetwork(
        [
            ModelOp(made, "x", "fake"),
            ModelOp(judge, "fake", "y"),
            LambdaOp(lambda y: softplus(-y).mean(), "y", "loss"),
            EpochScheduler({2: UpdateOp(judge, "loss", merge_grad=merge)}),
            UpdateOp(made, "loss", merge_grad=merge),
        ]
    )
    gradients = {one: torch.ones_like(one) if held else None for one in judge.parameters()}
    with network(mode="train", epoch=1):
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for batch in batches(2):
            network.run_step(batch)
    for parameter, gradient in gradients.items():
        assert parameter.grad is gradient
        assert gradient is None or bool((gradient == 1).all())
    assert no_gradients(made)


TOLD: Any = {"grad_norm": "norm", "stepped": "stepped"}


def by_hand(
    twin: nn.Module, windows: Any, loss_of: Any, norm: float | None = None, value: Any = None
) -> list[float]:
    """Train by windows of batches, and return the norms of gradients before they are clipped."""
    optimizer, norms = sgd()(twin.parameters()), []
    for window in windows:
        for batch in window:
            (loss_of(batch) / len(window)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(twin.parameters(), norm or float("inf"))))
        if value is not None:
            nn.utils.clip_grad_value_(twin.parameters(), value)
        optimizer.step()
        optimizer.zero_grad()
    return norms


def check(model: nn.Module, twin: nn.Module, results: Any, norms: list[float]) -> None:
    assert [float(result["norm"]) for result in results] == pytest.approx(norms, rel=1e-5)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


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
    norms = by_hand(
        twin,
        [[batch] for batch in data],
        lambda batch: cross_entropy(twin(batch["ids"]), batch["t"]),
        norm,
        value,
    )
    check(model, twin, run_all(network, data), norms)


def test_clipping_with_several_groups_equals_a_loop_bit_for_bit() -> None:
    """The norm is that of `clip_grad_norm_(model.parameters())`, in the order of the model."""

    def deep() -> nn.Module:
        layers = [nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5)) for _ in range(6)]
        return nn.Sequential(*layers, nn.Linear(5, 1))

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        ordered = list(parameters)
        groups = [
            {"params": [one for one in ordered if one.dim() < 2], "weight_decay": 0.0},
            {"params": [one for one in ordered if one.dim() > 1], "weight_decay": 0.1},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    model, twin = twins(deep)
    built(model, grouped)
    optimizer = grouped(twin.parameters())
    ops = regression(model, clip_norm=0.01, outputs=TOLD)
    with TorchNetwork(ops)("train") as network:
        for seed in range(20):
            source = torch.Generator().manual_seed(seed)
            x = torch.randn(8, 5, generator=source)
            found = network.run_step({"x": x})
            optimizer.zero_grad()
            (twin(x) ** 2).mean().backward()
            norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
            optimizer.step()
            assert torch.equal(found["norm"], norm)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


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

    def both(batch: Any) -> Any:
        y = twin(batch["x"])
        return cross_entropy(y, batch["t"]) + (y**2).mean()

    check(model, twin, run_all(network, data), by_hand(twin, [[one] for one in data], both, 0.1))


@pytest.mark.parametrize("compile", [False, CompileOptions(backend="eager")])
class TestUpdatesThatShareAStep:
    """Two deferred UpdateOps of one model: a step if either of them has gradients."""

    @staticmethod
    def network(model: Any, first: dict[str, Any], second: dict[str, Any], compile: Any) -> Any:
        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(cross_entropy, ["y", "t"], "loss"),
            LambdaOp(lambda y: (y**2).mean(), "y", "other"),
            UpdateOp(model, "loss", clip_norm=0.1, **first),
            UpdateOp(model, "other", clip_norm=0.1, outputs=TOLD, **second),
        ]
        return TorchNetwork(ops, compile=compile)

    @staticmethod
    def step_by_hand(twin: nn.Module, optimizer: Any, gradients: list[Any]) -> float:
        """Step with the sum of several lists of gradients; return its norm."""
        parameters = list(twin.parameters())
        for parameter, parts in zip(parameters, zip(*gradients, strict=True), strict=True):
            parameter.grad = sum(parts)
        norm = float(nn.utils.clip_grad_norm_(parameters, 0.1))
        optimizer.step()
        return norm

    @staticmethod
    def gradients(twin: nn.Module, batch: Any) -> list[Any]:
        """Compute the gradients of both losses."""
        y, parameters = twin(batch["x"]), list(twin.parameters())
        losses = cross_entropy(y, batch["t"]), (y**2).mean()
        return [torch.autograd.grad(one, parameters, retain_graph=True) for one in losses]

    @pytest.mark.parametrize("windows", [(1, 3), (2, 3), (3, 2)])
    def test_last_reports_step_of_either(self, windows: tuple[int, int], compile: Any) -> None:
        model, twin = twins(mlp)
        built(model, sgd(momentum=0.9))
        first, second = ({"merge_grad": one} for one in windows)
        data = batches(7)
        results = run_all(self.network(model, first, second, compile), data)
        optimizer, merged = sgd(momentum=0.9)(twin.parameters()), [[], []]
        for batch, result in zip(data, results, strict=True):
            due = []
            for window, part, own in zip(windows, self.gradients(twin, batch), merged, strict=True):
                own.append(part)
                if len(own) == window:
                    due.append([sum(each) / window for each in zip(*own, strict=True)])
                    own.clear()
            assert bool(result["stepped"]) is bool(due)
            if due:
                norm = self.step_by_hand(twin, optimizer, due)
                assert float(result["norm"]) == pytest.approx(norm, rel=1e-5)
            else:
                assert torch.isnan(result["norm"])
        check(model, twin, [], [])

    @pytest.mark.parametrize("named", [("a", "b"), ("a", None), (None, "b")])
    def test_weight_of_0_skips_own_gradients_only(self, named: Any, compile: Any) -> None:
        model, twin = twins(mlp)
        built(model, sgd(momentum=0.9))
        first, second = ({"weight": one} for one in named)
        weights = zip((2.0, 0.0, 3.0, 0.0, 2.0), (1.0, 1.0, 0.0, 0.0, 2.0), strict=True)
        data = [
            {**batch, "a": torch.tensor(a), "b": torch.tensor(b)}
            for batch, (a, b) in zip(batches(5), weights, strict=True)
        ]
        results = run_all(self.network(model, first, second, compile), data)
        optimizer = sgd(momentum=0.9)(twin.parameters())
        for batch, result in zip(data, results, strict=True):
            both = zip(named, self.gradients(twin, batch), strict=True)
            due = [part for name, part in both if name is None or batch[name] != 0]
            assert bool(result["stepped"]) is bool(due)
            if due:
                norm = self.step_by_hand(twin, optimizer, due)
                assert float(result["norm"]) == pytest.approx(norm, rel=1e-5)
        check(model, twin, [], [])

    def test_flush_takes_one_step(self, compile: Any) -> None:
        model, twin = twins(mlp)
        built(model, sgd(momentum=0.9))
        settings = {"merge_grad": 3, "rest": "flush"}
        network, data = self.network(model, settings, settings, compile), batches(4)
        run_all(network, data)
        optimizer = sgd(momentum=0.9)(twin.parameters())
        for window in (data[:3], data[3:]):
            parts = [self.gradients(twin, batch) for batch in window]
            sums = [[part / len(window) for part in loss] for both in parts for loss in both]
            self.step_by_hand(twin, optimizer, sums)
        check(model, twin, [], [])

    def test_flush_sums_gradients_of_shared_layer(self, compile: Any) -> None:
        """Two models of one layer; only the first optimizer steps it."""
        shared, twin = twins(lambda: nn.Linear(2, 3))
        heads = [twins(lambda: nn.Linear(3, 1), seed) for seed in (1, 2)]
        models = [
            built(nn.Sequential(shared, head), sgd(momentum=0.9), model_name=name)
            for name, (head, _) in zip("ab", heads, strict=True)
        ]
        ops = [ModelOp(one, "x", key) for one, key in zip(models, ("p", "q"), strict=True)]
        ops += [LambdaOp(lambda y: (y**2).mean(), key, f"loss_{key}") for key in ("p", "q")]
        ops += [
            UpdateOp(one, loss, merge_grad=2, rest="flush")
            for one, loss in zip(models, ("loss_p", "loss_q"), strict=True)
        ]
        data = [{"x": torch.randn(3, 2)} for _ in range(3)]
        network = TorchNetwork(ops, compile=compile)
        for epoch in (1, 2):
            run_all(network, data, epoch=epoch)
        parts = [[*twin.parameters()], *([*other.parameters()] for _, other in heads)]
        optimizer = sgd(momentum=0.9)([one for part in parts for one in part])
        for window in (data[:2], data[2:]) * 2:
            for batch in window:
                for _, head in heads:
                    ((head(twin(batch["x"])) ** 2).mean() / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
        check(shared, twin, [], [])
        for own, other in heads:
            check(own, other, [], [])


class Ones(TensorOp):
    """Updates a model by gradients of 1, through `update_model`."""

    def __init__(self, model: nn.Module, defer: bool) -> None:
        super().__init__()
        self.model = model
        self.put_off = defer

    def forward(self, data: Any, state: Any) -> None:
        gradients = [torch.ones_like(one) for one in self.model.parameters()]
        update_model(self.model, gradients, self.put_off, state["deferred"])

    def get_fe_models(self) -> set[Any]:
        return {self.model}


class TestUpdateModelBesideUpdateOps:
    """`update_model` in an op, in a step that has deferred an UpdateOp, or defers one later."""

    @staticmethod
    def step_by_hand(twin: nn.Module, loss: bool, clip: float | None = None) -> float:
        """Step with gradients of 1, and those of the loss; return their norm."""
        if loss:
            (twin(X["x"]) ** 2).mean().backward()
        for one in twin.parameters():
            one.grad = torch.ones_like(one) + (0 if one.grad is None else one.grad)
        norm = float(nn.utils.clip_grad_norm_(twin.parameters(), clip or float("inf")))
        sgd()(twin.parameters()).step()
        return norm

    @pytest.mark.parametrize("defer", [False, True])
    def test_joins_deferred_step(self, defer: bool) -> None:
        """It is clipped, reported and followed like that of the UpdateOp alone."""
        model, twin = twins(line)
        built(model, sgd())
        ema = EMA(model, decay=0.5)
        ops = regression(model, defer=True, clip_norm=0.5, outputs=TOLD)
        (result,) = run_all(TorchNetwork([*ops, Ones(model, defer), ema]), [X])
        norm = self.step_by_hand(twin, loss=True, clip=0.5)
        check(model, twin, [result], [norm])
        assert result["stepped"]
        assert ema.state_dict()["updates"] == 1

    @pytest.mark.parametrize("count", [0, 2])
    def test_deferred_step_is_taken_whatever_the_weight(self, count: int) -> None:
        model, twin = twins(line)
        built(model, sgd())
        first, loss, update = regression(model, weight="count", outputs=TOLD)
        network = TorchNetwork([first, loss, Ones(model, True), update])
        (result,) = run_all(network, [{**X, "count": count}])
        norm = self.step_by_hand(twin, loss=count > 0)
        check(model, twin, [result], [norm])
        assert result["stepped"]

    @pytest.mark.parametrize("outputs", [None, TOLD])
    def test_merging_update_reports_deferred_step_without_clipping_it(self, outputs: Any) -> None:
        model, twin = twins(line)
        built(model, sgd())
        ops = regression(model, merge_grad=2, clip_norm=0.5, outputs=outputs)
        results = run_all(TorchNetwork([Ones(model, True), *ops]), [X])
        norm = self.step_by_hand(twin, loss=False)
        check(model, twin, results if outputs else [], [norm] if outputs else [])


class Deferring(TensorOp):
    """Defers functions of a program under the name of a model, which append to a list."""

    def __init__(self, record: Callable[[str], None], title: str) -> None:
        super().__init__()
        self.record = record
        self.title = title

    def forward(self, data: Any, state: Any) -> None:
        state["deferred"].setdefault("m", []).append(partial(self.record, self.title))


@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("way", ["UpdateOp", "update_model"])
def test_deferred_functions_of_program_run_in_order(way: str, defer: bool) -> None:
    model, twin = twins(line)
    built(model, sgd(), model_name="m")
    ran: list[str] = []

    def record(title: str) -> None:
        is_updated = not same_weights(model, twin)
        ran.append(f"{title}, updated" if is_updated else title)

    def update() -> Any:
        ops = regression(model, defer=defer)
        return ops if way == "UpdateOp" else [Ones(model, defer)]

    later = [Deferring(record, title) for title in ("first", "second", "third")]
    ops = [later[0], *update(), later[1], *update(), later[2]]
    run_all(TorchNetwork([*ops, LambdaOp(lambda x: x, "x", "copy")]), [X])
    first = "first" if defer else "first, updated"
    assert ran == [first, "second, updated", "third, updated"]
    optimizer = sgd()(twin.parameters())
    for _ in range(2):
        if way == "UpdateOp":
            (twin(X["x"]) ** 2).mean().backward()
        else:
            for parameter in twin.parameters():
                before = 0 if parameter.grad is None else parameter.grad
                parameter.grad = torch.ones_like(parameter) + before
        if not defer:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    check(model, twin, [], [])


def test_step_that_fastestimator_deferred_is_replaced() -> None:
    model, twin = twins(line)
    built(model, sgd(), model_name="m")

    def fail() -> None:
        raise AssertionError("its gradients are in the joint step")

    fail.__module__ = "fastestimator.backend._update_model"
    deferred: dict[str, list[Any]] = {"m": [fail]}
    gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
    update_model(model, gradients, True, deferred)
    (step,) = deferred["m"]
    step()
    TestUpdateModelBesideUpdateOps.step_by_hand(twin, loss=False)
    check(model, twin, [], [])


def test_list_of_deferred_functions_may_be_empty() -> None:
    class Emptied(TensorOp):
        def forward(self, data: Any, state: Any) -> None:
            state["deferred"]["m"] = []

    model, twin = twins(line)
    built(model, sgd(), model_name="m")
    run_all(TorchNetwork([Emptied(), *regression(model)]), [X])
    by_hand(twin, [[X]], lambda one: (twin(one["x"]) ** 2).mean())
    check(model, twin, [], [])


def test_update_does_not_merge_after_a_lowered_window() -> None:
    model = built(line, sgd())
    network = TorchNetwork(regression(model, merge_grad=3))
    update = network.ops[-1]
    run_all(network, [X] * 2)
    update.merge_grad = 1
    with network("train"):
        assert update.updater().is_merging
        network.run_step(X)
        assert not update.updater().is_merging


def test_a_flush_that_fails_leaves_no_gradients() -> None:
    """The window is carried over."""
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
    by_hand(twin, [data[:3], data[3:]], lambda batch: cross_entropy(twin(batch["x"]), batch["t"]))
    check(model, twin, [], [])


def scaled(model: nn.Module, scale: float = 1024.0, interval: int = 2000) -> Any:
    """Build a model whose losses are scaled, without half precision."""
    made = built(model, sgd(0.1, momentum=0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    made.current_optimizer.scaler = scaler
    return made


class TestGradScaler:
    """Losses that are scaled, beside loops without a scale."""

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"merge_grad": 2}])
    def test_step_after_failed_one_has_normal_length(
        self, error: type[BaseException], settings: dict[str, Any]
    ) -> None:
        model, twin = twins(mlp)
        network, data = TorchNetwork(supervised(scaled(model), **settings)), batches(8)
        run_all(network, data[:2])

        def fail(*args: Any) -> None:
            raise error("no step today")

        hook = model.current_optimizer.register_step_pre_hook(fail)
        merge = settings.get("merge_grad", 1)
        with pytest.raises(error, match="no step today"):
            run_all(network, data[2 : 2 + merge])
        hook.remove()
        if merge > 1:  # A failed step is not merged.
            network.ops[-1].load_state_dict({"merged": 0, "gradients": []})
        run_all(network, data[4:])
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        trained = [*data[:2], *data[4:]]
        for at in range(0, 6, merge):
            for batch in trained[at : at + merge]:
                (loss_of(twin)(batch) / merge).backward()
            if "clip_norm" in settings:
                nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        assert model.current_optimizer.scaler.get_scale() == 1024
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)

    @pytest.mark.parametrize("after_loss", [False, True])
    @pytest.mark.parametrize("defer", [False, True])
    def test_update_model_scales_gradients(self, after_loss: bool, defer: bool) -> None:
        model, twin = twins(line)
        ops = regression(scaled(model), clip_norm=0.5)
        run_all(TorchNetwork([*(ops if after_loss else []), Ones(model, defer)]), [X])
        optimizer = sgd(0.1, momentum=0.9)(twin.parameters())
        if after_loss:
            (twin(X["x"]) ** 2).mean().backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
            optimizer.step()
        for parameter in twin.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        check(model, twin, [], [])
        assert model.current_optimizer.scaler.get_scale() == 1024

    def test_flush_before_first_scaled_loss(self) -> None:
        model, twin = twins(mlp)
        networks = [
            TorchNetwork(supervised(scaled(one), merge_grad=3, rest=rest))
            for one, rest in ((model, "carry"), (copy.deepcopy(model), "flush"))
        ]
        data = batches(2)
        run_all(networks[0], data)
        update = networks[1].ops[-1]
        state = networks[0].ops[-1].state_dict()
        update.load_state_dict({"merged": state["merged"], "gradients": state["gradients"]})
        with networks[1](mode="train", epoch=1):
            pass
        by_hand(twin, [data], loss_of(twin))
        for own, other in zip(update.model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("way", ["new scale", "other optimizer", "no scaler"])
    def test_several_scales_in_one_window(self, sparse: bool, way: str) -> None:
        model, twin = twins(Words if sparse else mlp)
        sources: Any = {1: sgd(), 2: sgd()} if way == "other optimizer" else {1: sgd()}
        built(model, EpochScheduler(sources))
        for optimizer, scale in zip(model.optimizer.get_all_values(), (1024.0, 8.0), strict=False):
            optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        ops = supervised(model, merge_grad=3)
        data = batches(3)
        if sparse:
            data = [{"x": torch.arange(40).reshape(8, 5) % 20, "t": one["t"]} for one in data]
            twin.table.sparse = False  # type: ignore[union-attr,unused-ignore]
        network = TorchNetwork(ops)
        run_all(network, data[:1])
        if way == "new scale":
            model.current_optimizer.scaler.update(8192.0)
        elif way == "no scaler":
            model.current_optimizer.scaler = None
        run_all(network, data[1:], epoch=2)
        by_hand(twin, [data], loss_of(twin))
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)

    def test_scale_that_grows_between_updates_of_one_model(self) -> None:
        """The window of the second update has a step of the first one in it."""
        model, twin = twins(mlp)
        first, loss, update = supervised(scaled(model, interval=1))
        second = UpdateOp(model, "loss", merge_grad=2)
        network, data = (
            TorchNetwork([first, loss, update, *supervised(model)[:2], second]),
            batches(2),
        )
        run_all(network, data)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        sums = [torch.zeros_like(one) for one in twin.parameters()]
        for batch in data:
            loss_of(twin)(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            gradients = torch.autograd.grad(loss_of(twin)(batch), list(twin.parameters()))
            sums = [total + one for total, one in zip(sums, gradients, strict=True)]
        for parameter, total in zip(twin.parameters(), sums, strict=True):
            parameter.grad = total / 2
        optimizer.step()
        assert model.current_optimizer.scaler.get_scale() == 8192
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)

    @pytest.mark.parametrize("case", ["two scalers", "one scaler", "no second", "apart", "other"])
    def test_shared_parameters_of_two_scales_are_refused(self, case: str) -> None:
        shared = nn.Linear(2, 2)
        layers = [shared, nn.Linear(2, 2) if case == "other" else shared]
        models = [
            built(nn.Sequential(layer, nn.Linear(2, 1)), sgd(), model_name=name)
            for layer, name in zip(layers, "ab", strict=True)
        ]
        scalers: list[Any] = [torch.amp.GradScaler("cpu") for _ in models]
        if case != "two scalers":
            scalers[1] = {"one scaler": scalers[0], "no second": None}.get(case, scalers[1])
        for model, scaler in zip(models, scalers, strict=True):
            model.current_optimizer.scaler = scaler
        first, second = (
            [ModelOp(model, "x", name), UpdateOp(model, name)]
            for model, name in zip(models, "ab", strict=True)
        )
        ops = [*first, *second] if case == "apart" else [first[0], second[0], first[1], second[1]]
        network = TorchNetwork(ops)
        if case != "two scalers":
            run_all(network, [X])
            return
        with pytest.raises(ValueError, match=r"\['a', 'b'\] share.*GradScaler.*bf16"):
            network("train")

    def test_overflow_in_window_skips_update(self) -> None:
        model = scaled(mlp())
        network, data = TorchNetwork(supervised(model, merge_grad=2, outputs=TOLD)), batches(4)
        before = weights(model)
        data[0]["x"][0, 0] = float("inf")
        results = run_all(network, data[:2])
        assert same_weights(model, before)
        assert model.current_optimizer.scaler.get_scale() == 512
        results += run_all(network, data[2:])
        assert [bool(one["stepped"]) for one in results] == [False, False, False, True]


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


@pytest.mark.parametrize("wrap", [lambda op: Sometimes(op, 0.5), lambda op: Foreign(op)])
def test_settings_of_updates_around_one_that_may_not_run(wrap: Any) -> None:
    model = built(line, sgd(), model_name="m")
    updates = [UpdateOp(model, "y", defer=True, clip_norm=limit) for limit in (1.0, 2.0)]
    at_once = UpdateOp(model, "y", clip_norm=1.0)
    ops = [ModelOp(model, "x", "y"), updates[0], wrap(at_once), updates[1]]
    with pytest.raises(ValueError, match=r"'m'.*clip_norm=1.0 and clip_norm=2.0"):
        TorchNetwork(ops)("train")
    ops[2] = at_once
    TorchNetwork([*ops[:2], Fuse([at_once]), ops[3]])("train")
    at_once.merge_grad = 2
    again = LambdaOp(lambda x: x, "x", "copy")
    with pytest.raises(ValueError, match=r"'m'.*clip_norm=1.0 and clip_norm=2.0"):
        TorchNetwork([*ops[:3], again, ops[3]])("train")


class Foreign:
    """A meta op that is not derived from those of fastnet."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.inputs, self.outputs, self.mode, self.ds_id = op.inputs, op.outputs, op.mode, op.ds_id
        self.in_list, self.out_list = op.in_list, op.out_list
        self.build = op.build
        self.get_fe_models, self.fe_retain_graph = op.get_fe_models, op.fe_retain_graph

    def forward(self, data: Any, state: Any) -> Any:
        return self.op.forward(data, state)


def test_update_inside_foreign_meta_op() -> None:
    """It is checked, flushed and explained like one inside of a Fuse."""
    model, twin = twins(line)
    built(model, sgd(), model_name="m")
    (*ops, update) = regression(model, merge_grad=3, rest="flush")
    network = TorchNetwork([*ops, Foreign(update)])
    run_all(network, [X] * 2)
    by_hand(twin, [[X] * 2], lambda one: (twin(one["x"]) ** 2).mean())
    check(model, twin, [], [])
    assert "UpdateOp" in str(network.explain("train"))


@pytest.mark.parametrize(
    ("update", "count"), [({"clip_norm": 1.0}, 0), ({"outputs": {"stepped": "stepped"}}, 2)]
)
def test_scale_is_read_only_where_it_is_reported(
    update: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the scale waits for the device."""
    model = built(line, sgd(), mixed_precision="fp16")
    scaler = model.current_optimizer.scaler
    network = TorchNetwork(regression(model, **update))
    reads: list[float] = []
    read = scaler.get_scale

    def get_scale() -> float:
        reads.append(read())
        return reads[-1]

    with network("train"):
        network.run_step(X)
        monkeypatch.setattr(scaler, "get_scale", get_scale)
        network.run_step(X)
    assert len(reads) == count


def test_settings_of_update_inside_foreign_meta_op_can_change() -> None:
    model, twin = twins(line)
    built(model, sgd(), model_name="m")
    (*ops, update) = regression(model, merge_grad=3)
    network = TorchNetwork([*ops, Foreign(update)])
    run_all(network, [X] * 3)
    update.merge_grad, update.clip_norm = 2, 0.01
    run_all(network, [X] * 2)
    loss = lambda one: (twin(one["x"]) ** 2).mean()  # noqa: E731
    by_hand(twin, [[X] * 3], loss)
    by_hand(twin, [[X] * 2], loss, 0.01)
    check(model, twin, [], [])


def test_checkpoint_has_window_of_update_inside_foreign_meta_op(tmp_path: Path) -> None:
    model, other = twins(line)
    for each in (model, other):
        built(each, sgd(), model_name="m")
    (*ops, update) = regression(model, merge_grad=2)
    network = TorchNetwork([*ops, Foreign(update)])
    run_all(network, [X] * 3)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    (*ops, update) = regression(other, merge_grad=2)
    fastnet.load_checkpoint(path, TorchNetwork([*ops, Foreign(update)]))
    assert update.state_dict()["merged"] == 1


def test_update_before_another_op_has_settings_of_its_own() -> None:
    model, twin = twins(mlp)
    built(model, sgd())
    network = TorchNetwork(
        [
            *supervised(model, clip_norm=0.1, outputs={"grad_norm": "early"}),
            *supervised(model, clip_norm=0.2, outputs=TOLD),
        ]
    )
    data = batches(3)
    results = run_all(network, data)
    for batch, result in zip(data, results, strict=True):
        for key, limit in (("early", 0.1), ("norm", 0.2)):
            (norm,) = by_hand(
                twin, [[batch]], lambda one: cross_entropy(twin(one["x"]), one["t"]), limit
            )
            assert float(result[key]) == pytest.approx(norm, rel=1e-5)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_update_after_a_joint_step_has_settings_of_its_own() -> None:
    """A deferred update, one at once, which takes both steps, and a deferred one after them."""
    model, twin = twins(mlp)
    built(model, sgd())
    joint = {"clip_norm": 0.1}
    first = [
        *supervised(model, defer=True, **joint),
        UpdateOp(model, "loss", **joint, outputs={"grad_norm": "early"}),
    ]
    network = TorchNetwork([*first, *supervised(model, clip_norm=0.2, outputs=TOLD)])
    for batch in batches(3):
        result = run(network, batch, "train")
        for key, limit, factor in (("early", 0.1, 2), ("norm", 0.2, 1)):
            (norm,) = by_hand(
                twin,
                [[batch]],
                lambda one, factor=factor: factor * cross_entropy(twin(one["x"]), one["t"]),
                limit,
            )
            assert float(result[key]) == pytest.approx(norm, rel=1e-5)
    check(model, twin, [], [])


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


# --- weights and merged gradients --------------------------------------------------------------


def weighted(model: Any, count: str, **settings: Any) -> list[Any]:
    """Two tasks of a model, each with a loss and a weight of its own."""
    return [
        ModelOp(model, "x", "y"),
        LambdaOp(lambda y: (y**2).mean(), "y", "first"),
        LambdaOp(lambda y: (y - 1).abs().mean(), "y", "second"),
        UpdateOp(model, "first", weight="count", **settings),
        UpdateOp(model, "second", weight=count, **settings),
    ]


@pytest.mark.parametrize(("first", "second"), [(5, 0), (0, 5), (5, 3), (0, 0)])
def test_two_weighted_updates_of_one_model(first: int, second: int) -> None:
    """They take one step together, by the gradients of those that have a weight."""
    model, twin = twins(line)
    built(model, sgd())
    network = TorchNetwork(weighted(model, "other"))
    batch = {"x": torch.ones(3, 2)}
    run_all(network, [{**batch, "count": torch.tensor(first), "other": torch.tensor(second)}])
    y = twin(batch["x"])
    loss = (y**2).mean() * bool(first) + (y - 1).abs().mean() * bool(second)
    loss.backward()
    sgd()(twin.parameters()).step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_refused_setting_changes_nothing() -> None:
    model, twin = twins(line)
    built(model, sgd())
    network = TorchNetwork(regression(model, merge_grad=2))
    update = network.ops[-1]
    batch = {"x": torch.ones(3, 2), "count": torch.tensor(2)}
    run_all(network, [batch])
    update.weight = "count"
    with pytest.raises(ValueError, match="its `weight` cannot change before the update"):
        run_all(network, [batch])
    assert update.state_dict()["merged"] == 1
    update.weight = None
    run_all(network, [batch])
    built(twin, sgd())
    run_all(TorchNetwork(regression(twin, merge_grad=2)), [batch] * 2)
    assert same_weights(model, twin)


def test_weights_of_several_dtypes() -> None:
    model, twin = twins(line)
    built(model, sgd())
    network = TorchNetwork(regression(model, merge_grad=2, weight="count"))
    batches = [{"x": torch.full((3, 2), float(n)), "count": w} for n, w in ((1, 0.9), (2, 1))]
    run_all(network, batches)
    optimizer = sgd()(twin.parameters())
    for batch in batches:
        (twin(batch["x"]) ** 2).mean().mul(batch["count"] / 1.9).backward()
    optimizer.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_large_weights_are_loaded_exactly() -> None:
    model = built(line, sgd(), model_name="m")
    network = TorchNetwork(regression(model, merge_grad=3, weight="count"))
    update = network.ops[-1]
    count = 2.0**24 + 1
    state = {"merged": 1, "gradients": [torch.ones(1, 2), torch.ones(1)], "weight": count}
    update.load_state_dict(state)
    assert update.state_dict()["weight"] == count


@pytest.mark.parametrize("model", ["without elements", "sparse"])
def test_skipping_with_gradients_without_elements(model: str) -> None:
    if model == "sparse":
        net: Any = nn.EmbeddingBag(5, 2, sparse=True)
        x = torch.zeros((0,), dtype=torch.int64)
        batch = {"x": x, "offsets": torch.zeros(1, dtype=torch.int64)}
    else:
        net = nn.Linear(0, 2)
        batch = {"x": torch.ones(3, 0)}
    built(net, sgd())
    ops = [
        ModelOp(net, list(batch) if len(batch) > 1 else "x", "y"),
        LambdaOp(lambda y: y.mean(), "y", "loss"),
        UpdateOp(net, "loss", skip_nonfinite=True, outputs={"stepped": "stepped"}),
    ]
    (result,) = run_all(TorchNetwork(ops), [batch])
    assert result["stepped"]


def test_a_flush_that_fails_keeps_what_was_merged() -> None:
    model, twin = twins(line)
    for each in (model, twin):
        built(each, sgd())
    network = TorchNetwork(regression(model, merge_grad=3, rest="flush"))
    batch = {"x": torch.ones(3, 2)}

    def fail(closure: Any = None) -> None:
        raise ArithmeticError

    model.current_optimizer.step, step = fail, model.current_optimizer.step
    with pytest.raises(ArithmeticError), network("train"):
        network.run_step(batch)
    assert network.ops[-1].state_dict()["merged"] == 1
    model.current_optimizer.step = step
    run_all(network, [batch] * 2)
    run_all(TorchNetwork(regression(twin, merge_grad=3)), [batch] * 3)
    assert same_weights(model, twin)


def test_a_failed_step_of_an_optimizer_that_was_assigned() -> None:
    model, twin = twins(line)
    built(model, None)
    model.current_optimizer = sgd()(model.parameters())
    network = TorchNetwork([*regression(model), LambdaOp(lambda y: 1 / y, "number", "z")])
    batch = {"x": torch.ones(3, 2)}
    with network("train"):
        with pytest.raises(ZeroDivisionError):
            network.run_step({**batch, "number": 0})
        before = weights(model)
        network.run_step({**batch, "number": 1})
    twin.load_state_dict(before)
    built(twin, sgd())
    run_all(TorchNetwork(regression(twin)), [batch])
    assert same_weights(model, twin)
