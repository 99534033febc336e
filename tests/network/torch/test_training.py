"""Training with a network, against hand-written loops: equal to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import MeanUnslicer, Slicer
from tests.network.programs import (
    Image,
    batches,
    built,
    line,
    losses,
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

# FastEstimator's defaults: torch's own, and a rate for SGD
BY_NAME = {
    "adadelta": lambda params: torch.optim.Adadelta(params),
    "adagrad": lambda params: torch.optim.Adagrad(params),
    "adam": lambda params: torch.optim.Adam(params),
    "adamax": lambda params: torch.optim.Adamax(params),
    "rmsprop": lambda params: torch.optim.RMSprop(params),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01),
}


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[dict[str, Any]]
) -> list[float]:
    """Train a classifier the way everybody writes it."""
    model.train()
    seen = []
    for batch in data:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["t"])
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach().double()))
    return seen


class TestPlain:
    @pytest.mark.parametrize("name", BY_NAME)
    def test_optimizers_by_name(self, name: str) -> None:
        model, twin = twins(mlp)
        data = batches(10)
        network = fastnet.Network(supervised(built(model, name)))
        assert losses(run_all(network, data)) == loop(twin, BY_NAME[name](twin.parameters()), data)
        assert same_weights(model, twin)

    @pytest.mark.parametrize(
        "make",
        [
            sgd(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
            lambda params: torch.optim.AdamW(params, lr=1e-2, amsgrad=True),
            # two groups with settings of their own
            lambda params: torch.optim.SGD(
                [{"params": [p], "lr": 0.1 / place} for place, p in enumerate(params, start=1)]
            ),
        ],
        ids=["momentum", "adamw", "groups"],
    )
    def test_optimizers_by_function(self, make: Callable[..., torch.optim.Optimizer]) -> None:
        model, twin = twins(mlp)
        data = batches(10)
        network = fastnet.Network(supervised(built(model, make)))
        assert losses(run_all(network, data)) == loop(twin, make(twin.parameters()), data)
        assert same_weights(model, twin)

    def test_many_openings(self) -> None:
        model, twin = twins(mlp)
        data = batches(12)
        network = fastnet.Network(supervised(built(model, "adam")))
        seen = []
        for epoch in (1, 2, 3):
            seen += losses(run_all(network, data[4 * epoch - 4 : 4 * epoch], epoch=epoch))
            run_all(network, data, mode="eval", epoch=epoch)
        assert seen == loop(twin, torch.optim.Adam(twin.parameters()), data)
        assert same_weights(model, twin)

    def test_layers_that_draw_numbers_and_keep_statistics(self) -> None:
        model, twin = twins(Image)
        data = batches(6, (1, 8, 8))
        network = fastnet.Network(supervised(built(model, "sgd")))
        torch.manual_seed(3)
        seen = losses(run_all(network, data))
        torch.manual_seed(3)
        assert seen == loop(twin, torch.optim.SGD(twin.parameters(), lr=0.01), data)
        assert same_weights(model, twin)  # the batch norm's running statistics among them
        assert int(model.norm.num_batches_tracked) == 6

    def test_a_rate_that_the_program_changes_between_steps(self) -> None:
        model, twin = twins(mlp)
        data = batches(6)
        network = fastnet.Network(supervised(built(model, sgd(0.1))))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data):
                for group in (*model.current_optimizer.param_groups, *optimizer.param_groups):
                    group["lr"] = 0.1 / (step + 1)
                network.run_step(batch)
                loop(twin, optimizer, [batch])
        assert same_weights(model, twin)

    def test_the_loss_may_have_elements(self) -> None:
        model, twin = twins(mlp)
        network = fastnet.Network(
            [
                ModelOp(built(model, "sgd"), "x", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True, average_loss=False),
                UpdateOp(model, "loss"),
            ]
        )
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
        data = batches(5)
        for batch, result in zip(data, run_all(network, data), strict=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"], reduction="none")
            loss.mean().backward()
            optimizer.step()
            assert torch.equal(result["loss"], loss)
        assert same_weights(model, twin)

    def test_no_gradient_is_left(self) -> None:
        model = built(mlp, "sgd")
        run_all(fastnet.Network(supervised(model)), batches(2))
        assert no_gradients(model)

    def test_other_leaves_of_the_graph_get_theirs_as_by_hand(self) -> None:
        model, twin = twins(line)
        x, by_hand = (torch.ones(3, 2, requires_grad=True) for _ in range(2))
        run(fastnet.Network(regression(built(model))), {"x": x}, "train")
        (twin(by_hand) ** 2).mean().backward()
        assert torch.equal(x.grad, by_hand.grad)

    @pytest.mark.parametrize("mode", ["eval", "test", "infer"])
    def test_other_modes_change_nothing(self, mode: str) -> None:
        model = built(Image, "adam")
        before = weights(model)
        results = run_all(fastnet.Network(supervised(model)), batches(3, (1, 8, 8)), mode=mode)
        assert same_weights(model, before)
        assert all(result["y"].grad_fn is None for result in results)
        assert not model.current_optimizer.state
        # losses are "!infer" unless told otherwise
        assert all(("loss" in result) == (mode != "infer") for result in results)

    def test_warmup_updates_nothing(self) -> None:
        model = built(mlp, None)  # not even an optimizer is asked for
        before = weights(model)
        network = fastnet.Network(supervised(model, merge_grad=2))
        results = run_all(network, batches(4), warmup=True)
        assert same_weights(model, before)
        assert len(losses(results)) == 4
        assert no_gradients(model)


class TestSeveralModels:
    def test_a_chain_of_two_with_an_optimizer_each(self) -> None:
        first, first_twin = twins(lambda: nn.Linear(16, 8), seed=1)
        second, second_twin = twins(lambda: nn.Linear(8, 4), seed=2)
        models = fastnet.build(lambda: [first, second], ["adam", sgd(0.1, momentum=0.9)])
        assert models == [first, second]
        network = fastnet.Network(
            [
                ModelOp(first, "x", "h"),
                ModelOp(second, "h", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(first, "loss"),
                UpdateOp(second, "loss"),
            ]
        )
        data = batches(10)
        seen = losses(run_all(network, data))
        one = torch.optim.Adam(first_twin.parameters())
        two = torch.optim.SGD(second_twin.parameters(), lr=0.1, momentum=0.9)
        expected = []
        for batch in data:
            loss = functional.cross_entropy(second_twin(first_twin(batch["x"])), batch["t"])
            loss.backward()
            expected.append(float(loss.detach().double()))
            for optimizer in (one, two):
                optimizer.step()
                optimizer.zero_grad()
        assert seen == expected
        assert same_weights(first, first_twin)
        assert same_weights(second, second_twin)
        assert no_gradients(first, second)

    def test_two_that_have_nothing_to_do_with_each_other(self) -> None:
        models = [built(mlp, "adam", model_name=f"twin{place}") for place in range(2)]
        separate = [twins(lambda model=model: model)[1] for model in models]
        data = batches(6)
        network = fastnet.Network(
            [
                op
                for place, model in enumerate(models)
                for op in (
                    ModelOp(model, "x", f"y{place}"),
                    CrossEntropy((f"y{place}", "t"), f"loss{place}", from_logits=True),
                    UpdateOp(model, f"loss{place}"),
                )
            ]
        )
        results = run_all(network, data)
        for place, (model, twin) in enumerate(zip(models, separate, strict=True)):
            expected = loop(twin, torch.optim.Adam(twin.parameters()), data)
            assert losses(results, f"loss{place}") == expected
            assert same_weights(model, twin)

    @pytest.mark.parametrize("last", [True, False], ids=["last in a row", "defer=True"])
    def test_an_adversarial_pair(self, last: bool) -> None:
        maker, maker_twin = twins(lambda: nn.Linear(4, 16), seed=1)
        critic, critic_twin = twins(lambda: nn.Linear(16, 1), seed=2)
        fastnet.build(lambda: (maker, critic), ["adam", "rmsprop"], model_name=["maker", "critic"])
        real_or_not = functional.binary_cross_entropy_with_logits

        def critic_loss(on_real: torch.Tensor, on_fake: torch.Tensor) -> torch.Tensor:
            return real_or_not(on_real, torch.ones_like(on_real)) + real_or_not(
                on_fake, torch.zeros_like(on_fake)
            )

        def maker_loss(on_fake: torch.Tensor) -> torch.Tensor:
            return real_or_not(on_fake, torch.ones_like(on_fake))

        ops: list[Any] = [
            ModelOp(maker, "noise", "fake"),
            ModelOp(critic, "fake", "on_fake"),
            ModelOp(critic, "x", "on_real"),
            LambdaOp(critic_loss, ["on_real", "on_fake"], "critic_loss"),
            UpdateOp(critic, "critic_loss", defer=not last),
            LambdaOp(maker_loss, "on_fake", "maker_loss"),
            UpdateOp(maker, "maker_loss"),
        ]
        if last:
            ops[4], ops[5] = ops[5], ops[4]
        data = [{**batch, "noise": batch["x"][:, :4]} for batch in batches(8)]
        results = run_all(fastnet.Network(ops), data)

        of_maker = torch.optim.Adam(maker_twin.parameters())
        of_critic = torch.optim.RMSprop(critic_twin.parameters())
        for batch, result in zip(data, results, strict=True):
            on_fake = critic_twin(maker_twin(batch["noise"]))
            loss = critic_loss(critic_twin(batch["x"]), on_fake)
            against = maker_loss(on_fake)
            # both gradients belong to the weights before either step
            loss.backward(inputs=list(critic_twin.parameters()), retain_graph=True)
            against.backward(inputs=list(maker_twin.parameters()))
            of_critic.step()
            of_maker.step()
            of_critic.zero_grad()
            of_maker.zero_grad()
            assert torch.equal(result["critic_loss"], loss)
            assert torch.equal(result["maker_loss"], against)
        assert same_weights(maker, maker_twin)
        assert same_weights(critic, critic_twin)
        assert no_gradients(maker, critic)


class TestDeferred:
    """When an update takes place, seen by an op that reads the weights."""

    def weights_seen(self, **update: Any) -> tuple[Any, Any, Any]:
        model = built(line, sgd(1.0))
        before = weights(model)
        look = LambdaOp(lambda y: model.weight.detach().clone(), "y", "seen")
        network = fastnet.Network([*regression(model, **update), look])
        seen = run(network, {"x": torch.ones(3, 2)}, "train")["seen"]
        return before["weight"], seen, model.weight.detach()

    def test_an_update_takes_place_at_once(self) -> None:
        before, seen, after = self.weights_seen()
        assert torch.equal(seen, after)
        assert not torch.equal(seen, before)

    def test_a_deferred_one_after_the_last_op(self) -> None:
        before, seen, after = self.weights_seen(defer=True)
        assert torch.equal(seen, before)
        assert not torch.equal(seen, after)

    def test_results_are_from_before_the_deferred_update(self) -> None:
        model, twin = twins(mlp)
        (batch,) = batches(1)
        result = run(fastnet.Network(supervised(built(model, "sgd"))), batch, "train")
        assert torch.equal(result["y"], twin(batch["x"]))
        assert not same_weights(model, twin)

    def test_updates_of_one_model_add_up_into_one_step(self) -> None:
        model, twin = twins(mlp)
        network = fastnet.Network(
            [
                ModelOp(built(model, "adam"), "x", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                LambdaOp(lambda y: y.abs().mean(), "y", "size"),
                UpdateOp(model, "loss"),
                UpdateOp(model, "size"),
            ]
        )
        data = batches(5)
        run_all(network, data)
        optimizer = torch.optim.Adam(twin.parameters())
        for batch in data:
            y = twin(batch["x"])
            functional.cross_entropy(y, batch["t"]).backward(retain_graph=True)
            y.abs().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same_weights(model, twin)

    def test_an_update_at_once_takes_what_was_deferred_with_it(self) -> None:
        model, twin = twins(mlp)
        steps: list[int] = []

        class Counting(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                steps.append(1)
                super().step()

        network = fastnet.Network(
            [
                ModelOp(built(model, lambda params: Counting(params, lr=0.1)), "x", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                LambdaOp(lambda y: y.abs().mean(), "y", "size"),
                UpdateOp(model, "loss", defer=True),
                UpdateOp(model, "size"),
                LambdaOp(lambda y: y + 1, "y", "z"),
            ]
        )
        (batch,) = batches(1)
        run(network, batch, "train")
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        y = twin(batch["x"])
        functional.cross_entropy(y, batch["t"]).backward(retain_graph=True)
        y.abs().mean().backward()
        optimizer.step()
        assert same_weights(model, twin)
        assert len(steps) == 1

    def test_opening_leaves_the_ops_as_they_are(self) -> None:
        model = built(mlp)
        ops = supervised(model)
        ops.insert(2, UpdateOp(model, "loss"))
        first, second = ops[2], ops[3]
        network = fastnet.Network(ops)
        network(mode="train", epoch=1)  # configured, and never entered
        for _ in range(2):
            assert (first.defer, second.defer) == (False, False)
            assert (first.retain_graph, second.retain_graph) == (False, False)
            run_all(network, batches(2))

    def test_an_op_that_knows_defer_as_a_setting_only(self) -> None:
        """FastEstimator's own UpdateOp, say: the setting is on for the call, and then as before."""
        seen: list[bool] = []

        class Foreign:
            inputs: tuple[str, ...] = ("x",)
            outputs: tuple[str, ...] = ()
            mode: frozenset[str] = frozenset()
            ds_id: frozenset[str] = frozenset()
            in_list = out_list = defer = False

            def forward(self, data: Any, state: Any) -> None:
                seen.append(self.defer)
                if data is None:
                    raise RuntimeError("no data")

        last, early = Foreign(), Foreign()
        network = TorchNetwork([early, LambdaOp(lambda x: x, "x", "y"), last])
        run(network, {"x": 1})
        assert seen == [False, True]
        assert not last.defer
        with pytest.raises(RuntimeError, match="no data"):
            run(network, {"x": None})
        assert not last.defer


class TestAccumulated:
    def test_the_textbook_loop(self) -> None:
        model, twin = twins(mlp)
        data = batches(12)
        network = fastnet.Network(supervised(built(model, "adam"), merge_grad=4))
        seen = losses(run_all(network, data))
        optimizer = torch.optim.Adam(twin.parameters())
        expected = []
        for step, batch in enumerate(data, start=1):
            loss = functional.cross_entropy(twin(batch["x"]), batch["t"])
            (loss / 4).backward()  # a power of two divides without rounding
            expected.append(float(loss.detach().double()))
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        assert seen == expected
        assert same_weights(model, twin)

    @pytest.mark.parametrize("merge", [2, 3, 5])
    def test_means_of_gradients(self, merge: int) -> None:
        model, twin = twins(mlp)
        data = batches(2 * merge + 1)
        network = fastnet.Network(
            supervised(built(model, sgd(0.1, momentum=0.9)), merge_grad=merge)
        )
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data, start=1):
                before = weights(model)
                network.run_step(batch)
                functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
                assert same_weights(model, before) == (step % merge != 0)
                if step % merge == 0:
                    for parameter in twin.parameters():
                        parameter.grad = parameter.grad / merge
                    optimizer.step()
                    optimizer.zero_grad()
                assert no_gradients(model)
        assert same_weights(model, twin)

    def test_goes_on_in_the_next_opening(self) -> None:
        model, twin = twins(mlp)
        data = batches(2)
        network = fastnet.Network(supervised(built(model, sgd()), merge_grad=2))
        before = weights(model)
        run_all(network, data[:1])
        assert same_weights(model, before)
        run_all(network, data[1:], epoch=2)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for batch in data:
            (functional.cross_entropy(twin(batch["x"]), batch["t"]) / 2).backward()
        optimizer.step()
        assert same_weights(model, twin)

    def test_beside_a_model_that_does_not(self) -> None:
        first, first_twin = twins(lambda: nn.Linear(16, 8), seed=1)
        second, second_twin = twins(lambda: nn.Linear(8, 4), seed=2)
        fastnet.build(lambda: [first, second], [sgd(), sgd()])
        network = fastnet.Network(
            [
                ModelOp(first, "x", "h"),
                ModelOp(second, "h", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(first, "loss", merge_grad=2),
                UpdateOp(second, "loss"),
            ]
        )
        data = batches(6)
        run_all(network, data)
        one = torch.optim.SGD(first_twin.parameters(), lr=0.1)
        two = torch.optim.SGD(second_twin.parameters(), lr=0.1)
        for step, batch in enumerate(data, start=1):
            loss = functional.cross_entropy(second_twin(first_twin(batch["x"])), batch["t"])
            loss.backward()
            if step % 2 == 0:
                for parameter in first_twin.parameters():
                    parameter.grad = parameter.grad / 2
                one.step()
                one.zero_grad()
            two.step()
            two.zero_grad()
        assert same_weights(first, first_twin)
        assert same_weights(second, second_twin)


class TestGivenGradients:
    @pytest.mark.parametrize("merge", [1, 2])
    def test_clipped_by_an_op(self, merge: int) -> None:
        model, twin = twins(mlp)
        built(model, sgd(0.5))

        def clipped(loss: torch.Tensor) -> list[torch.Tensor]:
            found = torch.autograd.grad(loss, list(model.parameters()))
            return [gradient.clamp(-0.01, 0.01) for gradient in found]

        network = fastnet.Network(
            [
                ModelOp(model, "x", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                LambdaOp(clipped, "loss", "gradients"),
                UpdateOp(model, "loss", gradients="gradients", merge_grad=merge),
            ]
        )
        assert network.get_loss_keys() == {"loss"}
        data = batches(6)
        results = run_all(network, data)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
        merged = [torch.zeros_like(parameter) for parameter in twin.parameters()]
        for step, (batch, result) in enumerate(zip(data, results, strict=True), start=1):
            functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
            for parameter, total, given in zip(
                twin.parameters(), merged, result["gradients"], strict=True
            ):
                assert torch.equal(given, parameter.grad.clamp(-0.01, 0.01))
                total += given
                parameter.grad = total / merge
            if step % merge == 0:
                optimizer.step()
                merged = [torch.zeros_like(parameter) for parameter in twin.parameters()]
            optimizer.zero_grad()
        assert same_weights(model, twin)
        assert no_gradients(model)

    def test_none_for_some_and_the_callers_own_are_not_written_to(self) -> None:
        model = built(line, sgd(1.0))
        before = weights(model)
        given = [torch.ones(1, 2), None]
        network = fastnet.Network([UpdateOp(model, "loss", gradients="given", defer=False)])
        run_all(network, [{"given": given}] * 2)
        assert torch.equal(model.weight, before["weight"] - 1 - 1)
        assert torch.equal(model.bias, before["bias"])
        assert torch.equal(given[0], torch.ones(1, 2))


class TestScheduledOps:
    def test_epochs_and_turns(self) -> None:
        model, twin = twins(mlp)
        built(model, sgd())
        network = fastnet.Network(
            [
                ModelOp(model, "x", "y"),
                EpochScheduler(
                    {
                        1: CrossEntropy(("y", "t"), "loss", from_logits=True),
                        3: LambdaOp(lambda y: y.abs().mean(), "y", "loss"),
                    }
                ),
                RepeatScheduler([UpdateOp(model, "loss"), None]),
            ]
        )
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        data = batches(3)
        for epoch in (1, 2, 3, 4, 5):
            results = run_all(network, data, epoch=epoch)
            for batch, result in zip(data, results, strict=True):
                y = twin(batch["x"])
                loss = functional.cross_entropy(y, batch["t"]) if epoch < 3 else y.abs().mean()
                assert torch.equal(result["loss"], loss)
                if epoch % 2:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            assert same_weights(model, twin)

    def test_modes_and_datasets(self) -> None:
        network = TorchNetwork(
            [
                LambdaOp(lambda x: x + 1, "x", "y", mode="train"),
                LambdaOp(lambda x: x + 2, "x", "y", mode="!train", ds_id="a"),
                LambdaOp(lambda x: x + 3, "x", "y", mode="!train", ds_id="!a"),
            ]
        )
        expected = {
            ("train", ""): 1,
            ("train", "a"): 1,
            ("eval", "a"): 2,
            ("eval", "b"): 3,
            ("test", ""): 3,
            ("infer", "a"): 2,
        }
        for (mode, ds_id), y in expected.items():
            assert run(network, {"x": 0}, mode, ds_id=ds_id)["y"] == y, (mode, ds_id)

    def test_a_model_that_comes_later(self) -> None:
        model, twin = twins(lambda: nn.Linear(16, 4))
        late, late_twin = twins(lambda: nn.Linear(4, 4), seed=1)
        fastnet.build(lambda: [model, late], ["sgd", "sgd"])
        network = fastnet.Network(
            [
                ModelOp(model, "x", "y"),
                EpochScheduler({2: ModelOp(late, "y", "y")}),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(model, "loss"),
                EpochScheduler({2: UpdateOp(late, "loss")}),
            ]
        )
        assert network.models == [model, late]
        data = batches(2)
        run_all(network, data)
        assert same_weights(late, late_twin)
        one = torch.optim.SGD(twin.parameters(), lr=0.01)
        loop(twin, one, data)
        assert same_weights(model, twin)
        run_all(network, data, epoch=2)
        both = nn.Sequential(twin, late_twin)
        loop(both, torch.optim.SGD(both.parameters(), lr=0.01), data)
        assert same_weights(model, twin)
        assert same_weights(late, late_twin)


class TestScheduledOptimizers:
    @pytest.mark.parametrize(
        ("scheduler", "names"),
        [
            (EpochScheduler({1: "sgd", 3: "adam"}), ["sgd", "sgd", "adam", "adam", "adam"]),
            (RepeatScheduler(["sgd", "rmsprop"]), ["sgd", "rmsprop", "sgd", "rmsprop", "sgd"]),
            (RepeatScheduler([BY_NAME["adam"], sgd(0.1)]), ["adam", None, "adam", None, "adam"]),
        ],
        ids=["epochs", "turns", "functions"],
    )
    def test_each_keeps_its_own_state(self, scheduler: Any, names: list[str | None]) -> None:
        model, twin = twins(mlp)
        built(model, scheduler)
        network = fastnet.Network(supervised(model))
        makes = {name: BY_NAME.get(name, sgd(0.1)) for name in names}
        optimizers = {name: make(twin.parameters()) for name, make in makes.items()}
        data = batches(3)
        for epoch, name in enumerate(names, start=1):
            seen = losses(run_all(network, data, epoch=epoch))
            assert type(model.current_optimizer) is type(optimizers[name])
            assert seen == loop(twin, optimizers[name], data)
            assert same_weights(model, twin)

    def test_the_first_is_current_before_any_epoch(self) -> None:
        model = built(line, EpochScheduler({1: "adam", 2: "sgd"}))
        assert type(model.current_optimizer) is torch.optim.Adam
        assert model.current_optimizer is model.optimizer.get_current_value(1)
        late = built(line, EpochScheduler({2: "sgd"}))
        assert late.current_optimizer is None

    def test_an_epoch_without_one(self) -> None:
        model = built(mlp, EpochScheduler({1: "sgd", 2: None, 3: "sgd"}))
        ops = supervised(model)
        ops[2] = RepeatScheduler([ops[2], None])
        network = fastnet.Network(ops)
        for epoch in (1, 2, 3):
            before = weights(model)
            run_all(network, batches(1), epoch=epoch)
            assert same_weights(model, before) == (epoch == 2)
            assert (model.current_optimizer is None) == (epoch == 2)

    def test_configuring_alone_changes_no_optimizer(self) -> None:
        model = built(line, RepeatScheduler(["adam", "sgd"]))
        network = fastnet.Network(regression(model))
        first = model.current_optimizer
        network(mode="train", epoch=2)
        assert model.current_optimizer is first
        with network:
            assert type(model.current_optimizer) is torch.optim.SGD

    def test_another_modes_opening_chooses_too(self) -> None:
        model = built(line, RepeatScheduler(["adam", "sgd"]))
        run(fastnet.Network(regression(model)), {"x": torch.ones(1, 2)}, "eval", epoch=2)
        assert type(model.current_optimizer) is torch.optim.SGD


class TestFrozen:
    @pytest.mark.parametrize("merge", [1, 2])
    def test_parameters_frozen_and_thawed_in_mid_training(self, merge: int) -> None:
        model, twin = twins(mlp)
        built(model, sgd(0.1, momentum=0.9))
        network = fastnet.Network(supervised(model, merge_grad=merge))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        data = batches(12)
        with network(mode="train", epoch=1):
            for step, batch in enumerate(data):
                for each in (model, twin):
                    each[0].requires_grad_(step % 8 < 4)
                before = weights(model)
                network.run_step(batch)
                (functional.cross_entropy(twin(batch["x"]), batch["t"]) / merge).backward()
                if (step + 1) % merge == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    assert torch.equal(model[0].weight, before["0.weight"]) == (step % 8 >= 4)
                    assert not torch.equal(model[2].weight, before["2.weight"])
                assert same_weights(model, twin)

    def test_a_model_that_is_run_without_gradients(self) -> None:
        features, _ = twins(lambda: nn.Linear(16, 8), seed=1)
        head, head_twin = twins(lambda: nn.Linear(8, 4), seed=2)
        fastnet.build(lambda: [features, head], ["sgd", "sgd"])
        before = weights(features)
        network = fastnet.Network(
            [
                ModelOp(features, "x", "h", trainable=False, gradients=False),
                ModelOp(head, "h", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                UpdateOp(head, "loss"),
            ]
        )
        data = batches(4)
        results = run_all(network, data)
        hidden = [{"x": result["h"], "t": result["t"]} for result in results]
        assert all(result["h"].grad_fn is None for result in results)
        assert losses(results) == loop(
            head_twin, torch.optim.SGD(head_twin.parameters(), lr=0.01), hidden
        )
        assert same_weights(features, before)
        assert same_weights(head, head_twin)

    def test_gradients_flow_through_a_model_that_is_not_trained(self) -> None:
        """As in an adversarial attack: the batch is differentiated, the model stays."""
        model = built(Image, None)
        model.requires_grad_(False)

        def against_the_gradient(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
            return x + 0.1 * torch.autograd.grad(loss, x)[0].sign()

        network = fastnet.Network(
            [
                LambdaOp(lambda x: x.clone().requires_grad_(), "x", "x"),
                ModelOp(model, "x", "y", trainable=False),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                LambdaOp(against_the_gradient, ["x", "loss"], "x_attack"),
            ]
        )
        (batch,) = batches(1, (1, 8, 8))
        with pytest.raises(RuntimeError, match="does not require grad"):
            run(network, batch, "train")  # nothing in it says that it takes gradients

        class Attack(LambdaOp):
            retain = False

            def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
                if retain is not None:
                    self.retain = retain
                return self.retain

        network.ops[-1] = Attack(against_the_gradient, ["x", "loss"], "x_attack")
        result = run(network, batch, "train")
        assert not torch.equal(result["x_attack"], batch["x"])
        assert result["x_attack"].grad_fn is None


class Pieces(Slicer):
    """Cuts a batch into pieces of two samples, and joins them."""

    def _slice_batch(self, batch: torch.Tensor) -> list[torch.Tensor]:
        return list(batch.split(2))

    def _unslice_batch(self, slices: tuple[torch.Tensor, ...], key: str) -> torch.Tensor:
        return torch.cat(slices)


class TestSliced:
    def test_each_minibatch_is_a_step(self) -> None:
        model, twin = twins(mlp)
        network = fastnet.Network(
            supervised(built(model, "adam")),
            slicers=[Pieces(slice=["x", "t"], unslice=["x", "t", "y"]), MeanUnslicer("loss")],
        )
        data = batches(4)
        results = run_all(network, data)
        optimizer = torch.optim.Adam(twin.parameters())
        for batch, result in zip(data, results, strict=True):
            pieces = [
                {"x": x, "t": t}
                for x, t in zip(batch["x"].split(2), batch["t"].split(2), strict=True)
            ]
            of_pieces = [loop(twin, optimizer, [piece])[0] for piece in pieces]
            assert result["y"].shape == (8, 4)
            assert torch.equal(result["x"], batch["x"])
            mean = torch.tensor(of_pieces).sum() / 4
            torch.testing.assert_close(result["loss"], mean)
        assert same_weights(model, twin)

    def test_merged_into_one_update_it_is_the_whole_batch(self) -> None:
        """What slicers are for: a batch too big for the device, and the same update."""
        model, twin = twins(mlp)
        network = fastnet.Network(
            supervised(built(model, "sgd"), merge_grad=4),
            slicers=[Pieces(slice=["x", "t"], unslice="y"), MeanUnslicer("loss")],
        )
        data = batches(4)
        seen = losses(run_all(network, data))
        whole = loop(twin, torch.optim.SGD(twin.parameters(), lr=0.01), data)
        assert seen == pytest.approx(whole, rel=1e-5)
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own, other)


def test_a_network_of_its_own_ops_in_the_order_given() -> None:
    """Ops may stand before or after anything; what one writes, the next one reads."""
    log: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        return lambda *values: (log.append(name), sum(values))[1]

    network = TorchNetwork(
        [
            LambdaOp(noted("a"), ["x"], "y"),
            LambdaOp(noted("b"), ["y", "x"], "x"),  # a key of the batch may be written over
            LambdaOp(noted("c"), ["x", "y"], "y"),
        ]
    )
    for count in (1, 2, 3):
        result = run(network, {"x": 2, "other": "kept"})
        assert result == {"x": 4, "y": 6, "other": "kept"}
        assert log == ["a", "b", "c"] * count
