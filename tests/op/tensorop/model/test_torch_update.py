"""UpdateOp in torch: settings, kept graphs, gradients of several models, and errors."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network import programs
from tests.network.programs import (
    Batch,
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


class TestRetainingTheGraph:
    """A graph is kept for as long as a later op takes gradients of it, and no longer."""

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
        # The advice of the error; a network defers the last updates by itself.
        ops[3].defer = True
        run(network, X, "train")
        ops[3].defer = False
        run(TorchNetwork(ops), X, "train")

    def test_a_tensor_that_an_op_has_overwritten(self) -> None:
        model = built(lambda: nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()), model_name="m")
        overwriting = LambdaOp(lambda y: y.add_(1).mean(), "y", "loss")
        network = TorchNetwork([ModelOp(model, "x", "y"), overwriting, UpdateOp(model, "loss")])
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            run(network, X, "train")
        text = "".join(traceback.format_exception(caught.value))
        assert "gradients of 'm'" in text
        assert "defer" not in text
        self.after(network, model)


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


MERGES = pytest.mark.parametrize("merge", [1, 2])


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Batch]) -> None:
    """Train a classifier the way everybody writes it."""
    for batch in data:
        functional.cross_entropy(model(batch["x"]), batch["t"]).backward()
        optimizer.step()
        optimizer.zero_grad()


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
    by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data)
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
    text = (
        "UpdateOp of 'm' has merged gradients of 2 parameters that neither the model nor its "
        "optimizer has any more: these are lost. Replace parameters right after an update."
    )
    with network(mode="train", epoch=1):
        network.run_step({"x": torch.ones(3, 2)})
        widen_anew(model, model.current_optimizer)
        before = weights(model)
        with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as caught:
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


class Checkpointed(nn.Sequential):
    """Layers that are run anew for their gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().forward, x, use_reentrant=True)
        return out


def checkpointed() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), Checkpointed(nn.Linear(16, 4)))


@pytest.mark.parametrize("merge", [1, 3])
@pytest.mark.parametrize("critic", [mlp, checkpointed])
@pytest.mark.parametrize("held", [False, True])
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
            LambdaOp(lambda y: functional.softplus(-y).mean(), "y", "loss"),
            EpochScheduler({2: UpdateOp(judge, "loss", merge_grad=merge)}),
            UpdateOp(made, "loss", merge_grad=merge),
        ]
    )
    gradients = {one: torch.ones_like(one) if held else None for one in judge.parameters()}
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
    run_all(network, batches(2))
    for parameter, gradient in gradients.items():
        assert parameter.grad is gradient
        assert gradient is None or bool((gradient == 1).all())
    assert no_gradients(made)


@contextmanager
def interrupted(model: nn.Module) -> Iterator[None]:
    """Let the backward pass through a model's weight be interrupted."""

    def interrupt(gradient: torch.Tensor) -> None:
        raise KeyboardInterrupt

    handle = model.get_parameter("weight").register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        yield
    handle.remove()


class TestAbandon:
    @MERGES
    def test_gradients_that_were_there_before_an_interrupted_one(self, merge: int) -> None:
        """An update that waits loses its gradients too, as the whole step did not happen."""
        model = built(line, sgd())
        network = TorchNetwork([*regression(model), UpdateOp(model, "loss", merge_grad=merge)])
        before = weights(model)
        with network(mode="train", epoch=1):
            with interrupted(model):
                network.run_step({"x": torch.ones(3, 2)})
            assert no_gradients(model)
            assert same_weights(model, before)
            network.run_step({"x": torch.zeros(3, 2)})
            assert torch.equal(model.weight, before["weight"])
