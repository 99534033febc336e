"""An update in torch is the loop by hand, whatever its program does to its model and to torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
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
    seeded,
    sgd,
    supervised,
    twins,
    weights,
)

MERGES = pytest.mark.parametrize("merge", [1, 2])


class Checkpointed(nn.Module):
    """(batch, 16) -> (batch, 4), with a middle that is computed anew for its gradients."""

    def __init__(self, leaf: bool) -> None:
        super().__init__()
        self.leaf = leaf
        self.first = nn.Linear(16, 16)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_() if self.leaf else self.first(x)
        out: torch.Tensor = self.last(checkpoint(self.middle, x, use_reentrant=True))
        return out


class Sharded(nn.Module):
    """A layer whose weight is another leaf while it runs, which hands its gradient on."""

    def __init__(self, inputs: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.weight.detach().clone().requires_grad_()
        whole.register_post_accumulate_grad_hook(self._reduce)
        return functional.linear(x, whole)

    def _reduce(self, whole: torch.Tensor) -> None:
        found = whole.grad
        assert found is not None
        self.weight.grad = found if self.weight.grad is None else self.weight.grad + found
        whole.grad = None


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[Batch],
    merge: int = 1,
    scale: Any = 1,
) -> None:
    """Train a classifier the way everybody writes it."""
    for step, batch in enumerate(data, start=1):
        loss = functional.cross_entropy(model(batch["x"]) * scale, batch["t"])
        (loss / merge).backward()
        if step % merge == 0:
            optimizer.step()
            optimizer.zero_grad()


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """Return the optimizer in force."""
    optimizer: torch.optim.Optimizer = model.current_optimizer
    return optimizer


class TestWhatTheModelDoesNotShow:
    """What is trained is settled by the optimizer and by the graph."""

    @MERGES
    @pytest.mark.parametrize("leaf", [True, False])
    def test_a_checkpoint_that_enters_autograd_anew(self, leaf: bool, merge: int) -> None:
        model, twin = twins(lambda: Checkpointed(leaf))
        data = batches(6)
        before = weights(model)
        run_all(TorchNetwork(supervised(built(model, sgd()), merge_grad=merge)), data)
        by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data, merge)
        assert same_weights(model, twin)
        assert not torch.equal(model.middle[0].weight, before["middle.0.weight"])
        assert no_gradients(model)

    @MERGES
    def test_a_parameter_that_only_the_optimizer_has(self, merge: int) -> None:
        model, twin = twins(mlp)
        scale, of_twin = (nn.Parameter(torch.tensor(2.0)) for _ in range(2))
        built(model, lambda parameters: torch.optim.SGD([*parameters, scale], lr=0.1))
        ops = supervised(model, merge_grad=merge)
        ops.insert(1, LambdaOp(lambda y: y * scale, "y", "y"))
        data = batches(6)
        run_all(TorchNetwork(ops), data)
        optimizer = torch.optim.SGD([*twin.parameters(), of_twin], lr=0.1)
        by_hand(twin, optimizer, data, merge, of_twin)
        assert torch.equal(scale, of_twin)
        assert float(scale.detach()) != 2.0
        assert same_weights(model, twin)
        assert scale.grad is None

    @MERGES
    def test_parameters_that_a_wrapper_holds_elsewhere(self, merge: int) -> None:
        model, twin = twins(lambda: nn.Sequential(nn.Linear(16, 16), Sharded()))
        data = batches(6)
        before = weights(model)
        run_all(TorchNetwork(supervised(built(model, sgd()), merge_grad=merge)), data)
        by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data, merge)
        assert same_weights(model, twin)
        assert not torch.equal(model[1].weight, before["1.weight"])

    def test_an_optimizer_inside_of_the_backward_pass(self) -> None:
        """Hooks that step at once take the gradients, and nobody is told of a loss without any."""
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


def replace_layer(model: Any, optimizer: Any) -> None:
    model[2] = seeded(lambda: nn.Linear(32, 4), 7)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.05})


def add_layer(model: Any, optimizer: Any) -> None:
    model.append(seeded(lambda: nn.Linear(4, 4), 7))
    optimizer.add_param_group({"params": model[3].parameters(), "lr": 0.05})


def normalize(model: Any, optimizer: Any) -> None:
    parametrizations.weight_norm(model[0])
    optimizer.add_param_group({"params": model[0].parametrizations.parameters()})


def widen(model: Any, optimizer: Any) -> None:
    model.double()


def widen_anew(model: Any, optimizer: Any) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def thaw(model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(not model[0].weight.requires_grad)


@MERGES
@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("change", [replace_layer, add_layer, normalize, widen, widen_anew, thaw])
def test_a_change_between_steps(change: Callable[[Any, Any], None], at: int, merge: int) -> None:
    if change is widen_anew:
        at = 2  # between two updates, as the gradients of the old parameters are lost
    model, twin = twins(mlp)
    built(model, sgd(0.1))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    network = TorchNetwork(supervised(model, merge_grad=merge))
    with network(mode="train", epoch=1):
        for step, batch in enumerate(batches(8)):
            if step == at:
                change(model, optimizer_of(model))
                change(twin, optimizer)
            batch["x"] = batch["x"].to(next(model.parameters()).dtype)
            network.run_step(batch)
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
            (loss / merge).backward()
            if step % merge == merge - 1:
                optimizer.step()
                optimizer.zero_grad()
            assert same_weights(model, twin)
    assert no_gradients(model)


def test_gradients_of_parameters_that_are_gone() -> None:
    model = built(line, sgd(), model_name="m")
    network = TorchNetwork(regression(model, merge_grad=2))
    text = (
        "UpdateOp of 'm' has merged gradients of 2 parameters that neither the model nor its "
        "optimizer has any more: these are lost. Replace parameters right after an update."
    )
    with network(mode="train", epoch=1):
        network.run_step({"x": torch.ones(3, 2)})
        widen_anew(model, optimizer_of(model))
        before = weights(model)
        with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as caught:
            network.run_step({"x": torch.ones(3, 2).double()})
    assert [one.filename for one in caught] == [__file__]
    assert not same_weights(model, before)


def test_merged_gradients_keep_no_graph() -> None:
    """Gradients that are given may have one, which would keep every step alive until the update."""
    model = built(nn.Linear(2, 1), sgd())
    op = UpdateOp(model, "loss", gradients="g", merge_grad=3)
    state: dict[str, Any] = {"warmup": False, "deferred": {}}
    expected = [torch.zeros_like(one) for one in model.parameters()]
    for _ in range(2):
        loss = (model(torch.ones(3, 2)) ** 2).sum()
        gradients = list(torch.autograd.grad(loss, list(model.parameters()), create_graph=True))
        assert all(one.requires_grad for one in gradients)
        expected = [total + one.detach() for total, one in zip(expected, gradients, strict=True)]
        op.forward(gradients, state)
        run_deferred(state)
    merged = op.state_dict()
    assert merged["merged"] == 2
    for total, wanted in zip(merged["gradients"], expected, strict=True):
        assert not total.requires_grad
        assert torch.equal(total, wanted)


class TestBesideOtherModels:
    """No gradient of one model gets into another's `.grad`."""

    def pair(self, critic: Callable[[], nn.Module], **settings: Any) -> tuple[Any, Any, Any, Any]:
        maker, maker_twin = twins(lambda: nn.Linear(16, 16), seed=1)
        critic_model, critic_twin = twins(critic, seed=2)
        built(maker, sgd(), model_name="maker")
        built(critic_model, sgd(0.2), model_name="critic", **settings)
        return maker, maker_twin, critic_model, critic_twin

    def ops(self, maker: Any, critic: Any, detach: bool, merge: int = 1) -> list[Any]:
        return [
            ModelOp(maker, "x", "fake"),
            LambdaOp(lambda fake: fake.detach() if detach else fake, "fake", "shown"),
            ModelOp(critic, "shown", "on_shown"),
            ModelOp(critic, "x", "on_real"),
            ModelOp(critic, "fake", "on_fake"),
            LambdaOp(lambda a, b: self.critic_loss(a, b), ["on_real", "on_shown"], "critic_loss"),
            LambdaOp(self.maker_loss, "on_fake", "maker_loss"),
            UpdateOp(critic, "critic_loss", merge_grad=merge),
            UpdateOp(maker, "maker_loss", merge_grad=merge),
        ]

    @staticmethod
    def critic_loss(on_real: torch.Tensor, on_shown: torch.Tensor) -> torch.Tensor:
        return functional.softplus(-on_real).mean() + functional.softplus(on_shown).mean()

    @staticmethod
    def maker_loss(on_fake: torch.Tensor) -> torch.Tensor:
        return functional.softplus(-on_fake).mean()

    @MERGES
    @pytest.mark.parametrize("detach", [True, False])
    @pytest.mark.parametrize("critic", [mlp, lambda: Checkpointed(False), Sharded])
    @pytest.mark.parametrize("inside", [False, True])
    def test_an_adversarial_pair(
        self, critic: Callable[[], nn.Module], detach: bool, merge: int, inside: bool
    ) -> None:
        maker, maker_twin, critic_model, critic_twin = self.pair(critic)
        ops = self.ops(maker, critic_model, detach, merge)
        if inside:
            for op in ops[-2:]:
                op.defer = True
            ops[-2:] = [Fuse(ops[-2:])]
        data = batches(4)
        run_all(TorchNetwork(ops), data)

        one = torch.optim.SGD(maker_twin.parameters(), lr=0.1)
        two = torch.optim.SGD(critic_twin.parameters(), lr=0.2)
        sums: dict[Any, torch.Tensor] = {}
        for step, batch in enumerate(data, start=1):
            for mine, loss in (
                (critic_twin, "critic_loss"),
                (maker_twin, "maker_loss"),
            ):
                # a graph for each, so that plain backward passes do
                fake = maker_twin(batch["x"])
                shown = fake.detach() if detach else fake
                value = (
                    self.critic_loss(critic_twin(batch["x"]), critic_twin(shown))
                    if loss == "critic_loss"
                    else self.maker_loss(critic_twin(fake))
                )
                value.backward()
                for parameter in mine.parameters():
                    if parameter.grad is not None:
                        sums[parameter] = sums.get(parameter, 0) + parameter.grad
                for parameter in (*maker_twin.parameters(), *critic_twin.parameters()):
                    parameter.grad = None
            if step % merge == 0:
                for parameter, total in sums.items():
                    parameter.grad = total / merge
                sums = {}
                for optimizer in (one, two):
                    optimizer.step()
                    optimizer.zero_grad()
        for model, twin in ((maker, maker_twin), (critic_model, critic_twin)):
            for own, other in zip(model.parameters(), twin.parameters(), strict=True):
                # a graph that is walked in one piece may add up in another order
                torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
            assert not same_weights(model, weights(seeded(lambda: nn.Linear(16, 16), 1)))
        assert no_gradients(maker, critic_model)

    @pytest.mark.parametrize("merge", [1, 3])
    @pytest.mark.parametrize("critic", [mlp, lambda: Checkpointed(False), Sharded])
    @pytest.mark.parametrize("held", [False, True])
    def test_what_the_other_holds_stays(
        self, critic: Callable[[], nn.Module], merge: int, held: bool
    ) -> None:
        """Its update may be in another epoch, or the program's own."""
        maker, _, critic_model, _ = self.pair(critic)
        ops = self.ops(maker, critic_model, detach=False, merge=merge)
        ops[-2] = EpochScheduler({2: ops[-2]})
        gradients = {
            parameter: torch.ones_like(parameter) if held else None
            for parameter in critic_model.parameters()
        }
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        run_all(TorchNetwork(ops), batches(2))
        for parameter, gradient in gradients.items():
            assert parameter.grad is gradient
            assert gradient is None or bool((gradient == 1).all())
        assert no_gradients(maker)

    @MERGES
    def test_a_loss_of_the_other_model_alone(self, merge: int) -> None:
        maker, _, critic, _ = self.pair(mlp)
        before = weights(maker), weights(critic)
        network = TorchNetwork(
            [
                ModelOp(maker, "x", "fake"),
                ModelOp(critic, "x", "y"),
                LambdaOp(lambda y: y.mean(), "y", "loss"),
                UpdateOp(maker, "loss", merge_grad=merge),
            ]
        )
        with pytest.warns(UserWarning, match="as its graph does not reach it"):
            run_all(network, batches(2))
        assert same_weights(maker, before[0])
        assert same_weights(critic, before[1])
        assert no_gradients(maker, critic)

    def test_a_model_without_an_optimizer_gets_what_the_loop_by_hand_gives_it(self) -> None:
        model, twin = twins(mlp)
        fixed, fixed_twin = twins(lambda: nn.Linear(4, 4), seed=5)
        built(model, sgd(), model_name="trained")
        built(fixed, None, model_name="fixed")
        ops = supervised(model)
        ops.insert(1, ModelOp(fixed, "y", "y"))
        (batch,) = batches(1)
        run(TorchNetwork(ops), batch, "train")
        by_hand(
            nn.Sequential(twin, fixed_twin), torch.optim.SGD(twin.parameters(), lr=0.1), [batch]
        )
        assert same_weights(model, twin)
        assert torch.equal(fixed.weight.grad, fixed_twin.weight.grad)

    @pytest.mark.parametrize("critic", [mlp, lambda: Checkpointed(False)])
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_a_backward_pass_that_fails(
        self, critic: Callable[[], nn.Module], error: type[BaseException]
    ) -> None:
        maker, _, critic_model, _ = self.pair(critic)
        ops = self.ops(maker, critic_model, detach=False)
        ops[-2] = EpochScheduler({2: ops[-2]})
        network = TorchNetwork(ops)
        for parameter in critic_model.parameters():
            parameter.grad = torch.ones_like(parameter)

        def fail(gradient: torch.Tensor) -> None:
            raise error("as told")

        handle = maker.weight.register_hook(fail)
        with pytest.raises(error, match="as told"):
            run_all(network, batches(1))
        handle.remove()
        assert is_free(network)
        assert no_gradients(maker)
        assert all(bool((one.grad == 1).all()) for one in critic_model.parameters())


class TestWhatStandsInTheWay:
    """Where somebody looks on, or has put something in the place of torch's own, that is called."""

    def trained(self, network: TorchNetwork, model: nn.Module, twin: nn.Module) -> None:
        data = batches(3)
        run_all(network, data)
        by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data)
        assert same_weights(model, twin)
        assert no_gradients(model)

    @pytest.mark.parametrize("name", ["zero_grad", "step"])
    def test_a_method_of_the_optimizer(self, name: str) -> None:
        model, twin = twins(mlp)
        optimizer = optimizer_of(built(model, sgd()))
        calls: list[str] = []
        own = getattr(optimizer, name)

        def patched(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return own(*args, **kwargs)

        setattr(optimizer, name, patched)
        self.trained(TorchNetwork(supervised(model)), model, twin)
        assert calls == [name] * 3


@contextmanager
def interrupted(model: nn.Module) -> Iterator[None]:
    """Let the backward pass through a model's weight be interrupted."""

    def interrupt(gradient: torch.Tensor) -> None:
        raise KeyboardInterrupt

    handle = model.get_parameter("weight").register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        yield
    handle.remove()


def run_deferred(state: dict[str, Any]) -> None:
    """Run the deferred functions, as the end of a step does."""
    deferred = state["deferred"]
    while deferred:
        waiting = list(deferred.values())
        deferred.clear()
        for functions in waiting:
            for function in functions:
                function()


class TestAbandon:
    def test_gradients_of_the_model_and_of_the_optimizer(self) -> None:
        extra = nn.Parameter(torch.ones(1))
        model = built(line, lambda parameters: torch.optim.SGD([next(iter(parameters)), extra]))
        for parameter in (*model.parameters(), extra):
            parameter.grad = torch.ones_like(parameter)
        op = UpdateOp(model, "loss")
        Fuse([op]).clear_gradients()
        assert no_gradients(model)
        assert extra.grad is None
        op.clear_gradients()

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
