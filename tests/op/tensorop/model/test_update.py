"""UpdateOp: what it is told, what it tells, and its errors. How it trains is in tests/network."""

from __future__ import annotations

import re
import traceback
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network import programs
from tests.network.programs import (
    built,
    is_free,
    line,
    no_gradients,
    regression,
    run,
    run_all,
    same_weights,
    sgd,
    twins,
    weights,
)

X = {"x": torch.ones(3, 2)}


class TestMaking:
    def test_settings(self) -> None:
        model = built(line)
        op = UpdateOp(model, "loss", None, ["train", "eval"], "!a", 3, True)
        assert op.model is model
        assert op.inputs == ["loss"]
        assert op.outputs == []
        assert op.mode == {"train", "eval"}
        assert op.ds_id == {"!a"}
        assert op.merge_grad == 3
        assert op.defer is True
        assert op.gradients is None
        assert op.loss_name == "loss"

    def test_what_it_tells_a_network(self) -> None:
        model = built(line)
        op = UpdateOp(model, "loss")
        assert op.get_fe_models() == {model}
        assert op.get_fe_loss_keys() == {"loss"}
        assert op.fe_retain_graph() is False
        assert op.fe_retain_graph(True) is True
        assert op.fe_retain_graph() is True
        assert op.fe_retain_graph(False) is False

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
        model = built(line, model_name="m", parallel="dp")
        UpdateOp(model, "loss", merge_grad=1)
        with pytest.raises(ValueError, match=r"UpdateOp.*'m'.*merge_grad=2.*merge_grad=1\."):
            UpdateOp(model, "loss", merge_grad=2)

    def test_of_no_known_framework(self) -> None:
        model = types.SimpleNamespace(fe_compiled=True, model_name="m", mixed_precision=False)
        with pytest.raises(ValueError, match=r"UpdateOp.*torch\.nn.*SimpleNamespace"):
            UpdateOp(model, "loss")


class TestRetainingTheGraph:
    """A graph is kept for as long as a later op takes gradients of it, and no longer."""

    class Own(TensorOp):
        """An op that takes gradients, and can be told to keep the graph by a setting only."""

        def __init__(self, inputs: str, fails: bool = False) -> None:
            super().__init__(inputs)
            self.retain = False
            self.fails = fails
            self.seen: list[bool] = []

        def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
            if retain is not None:
                self.retain = retain
            return self.retain

        def forward(self, data: Any, state: Any) -> None:
            self.seen.append(self.retain)
            if self.fails:
                raise RuntimeError("as told")

    def freed(self, network: TorchNetwork) -> bool:
        """Run a step whose last op walks the loss's graph once more."""
        try:
            run(network, X, "train")
        except RuntimeError as error:
            assert "backward through the graph a second time" in str(error)  # noqa: PT017
            return True
        return False

    @pytest.mark.parametrize("merge", [1, 2])
    def test_for_all_but_the_last(self, merge: int) -> None:
        model = built(line)
        again = LambdaOp(lambda loss: loss.backward(), "loss")
        ops = regression(model, merge_grad=merge)
        network = TorchNetwork([*ops, UpdateOp(model, "loss", defer=True), again])
        assert self.freed(network)
        network = TorchNetwork([*ops, again, UpdateOp(model, "loss", defer=True)])
        with pytest.raises(RuntimeError, match="second time"):
            run(network, X, "train")  # the update itself comes too late, as `again` keeps nothing
        network = TorchNetwork([*ops, again])
        assert self.freed(network)
        assert no_gradients(model)

    def test_an_op_that_must_be_told_is_told_for_just_the_call(self) -> None:
        model = built(line)
        early, late = self.Own("y"), self.Own("y")
        late.retain = True
        network = TorchNetwork([*regression(model)[:2], early, regression(model)[2], late])
        with network(mode="train", epoch=1):
            assert network.ctx_state["req_grad"] is True
            network.run_step(X)
            assert (early.seen, late.seen) == ([True], [False])
            assert (early.retain, late.retain) == (False, True)

    def test_a_derived_update_with_a_forward_of_its_own(self) -> None:
        seen: list[Any] = []

        class Own(UpdateOp):
            def forward(self, data: Any, state: Any) -> None:
                seen.append((self.defer, self.retain_graph))
                super().forward(data, state)

        model, twin = twins(line)
        built(model, sgd(0.1))
        own = Own(model, "loss")
        run(TorchNetwork([*regression(model)[:2], own, UpdateOp(model, "loss")]), X, "train")
        assert seen == [(True, True)]
        assert (own.defer, own.retain_graph) == (False, False)
        loss = (twin(X["x"]) ** 2).mean()
        (loss + loss).backward()
        torch.optim.SGD(twin.parameters(), lr=0.1).step()
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
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            run(network, X, "train")
        text = "".join(traceback.format_exception(caught.value))
        assert re.search(r"gradients of 'first'.*defer=True to the UpdateOps", text)
        self.after(network, first, second)
        # what the text says to do, and what a network does by itself for those that stand last
        ops[3].defer = True
        run(network, X, "train")
        ops[3].defer = False
        run(TorchNetwork(ops), X, "train")


class TestALossThatDoesNotReachTheModel:
    def network(self, model: Any, **update: Any) -> TorchNetwork:
        ops = regression(model, **update)
        other = built(line)
        ops[1] = LambdaOp(lambda x: other(x).mean(), "x", "loss")
        return TorchNetwork(ops)

    def test_warns_once_an_opening_and_changes_nothing(self) -> None:
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

    def test_one_that_reaches_some_parameters_is_fine(self) -> None:
        model = built(line, model_name="m")
        ops = regression(model)
        ops[1] = LambdaOp(lambda y: model.bias.sum(), "y", "loss")
        before = weights(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(TorchNetwork(ops), X, "train")
        assert torch.equal(model.weight, before["weight"])
        assert not torch.equal(model.bias, before["bias"])


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
