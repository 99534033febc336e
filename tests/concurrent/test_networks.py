"""What `docs/threads.md` says of networks in threads, sentence by sentence."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import (
    Image,
    batches,
    built,
    is_free,
    line,
    losses,
    mlp,
    regression,
    run,
    run_all,
    same_weights,
    seeded,
    sgd,
    twins,
)

WAIT = 300  # seconds, after which something hangs


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions in a thread each, which start together; give their results."""
    barrier = threading.Barrier(len(functions))

    def call(function: Callable[[], Any]) -> Any:
        barrier.wait(WAIT)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [one.result(4 * WAIT) for one in [pool.submit(call, each) for each in functions]]


def trained_by_hand(model: nn.Module, inputs: list[torch.Tensor]) -> list[float]:
    """Train a model in a hand-written loop, and return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for x in inputs:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


class Meeting(nn.Module):
    """A layer in which passes of several threads wait for each other."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties)
        self.on = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on:
            self.barrier.wait(WAIT)
        return x


class TestLayersThatAreTakenDown:
    """Passes through one model at the same time: each has its own layers' outputs."""

    @pytest.fixture
    def model(self) -> Any:
        model = nn.Sequential(nn.Linear(2, 3), Meeting(2), nn.Linear(3, 1))
        return built(model, None)

    @staticmethod
    def expected(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden: torch.Tensor = model[0](x)
        return hidden

    @staticmethod
    def op(model: Any) -> ModelOp:
        return ModelOp(model, "x", ["y", "h"], intermediate_layers="0")

    @pytest.mark.parametrize("share", [False, True], ids=["ops of their own", "one op"])
    def test_in_two_networks(self, model: Any, share: bool) -> None:
        first = self.op(model)
        networks = [TorchNetwork([first]), TorchNetwork([first if share else self.op(model)])]
        inputs = [torch.full((4, 2), float(number)) for number in (1, 2)]
        results = at_once(
            *(lambda n=n, x=x: run(n, {"x": x}) for n, x in zip(networks, inputs, strict=True))
        )
        for x, result in zip(inputs, results, strict=True):
            assert torch.equal(result["h"], self.expected(model, x))

    def test_in_one_network_that_threads_step(self, model: Any) -> None:
        network = TorchNetwork([self.op(model)])
        inputs = [torch.full((4, 2), float(number)) for number in (1, 2)]
        with network(mode="infer", epoch=1):
            results = at_once(*(lambda x=x: network.run_step({"x": x}) for x in inputs))
        for x, result in zip(inputs, results, strict=True):
            assert torch.equal(result["h"], self.expected(model, x))

    def test_in_a_copy_of_the_model(self, model: Any) -> None:
        """Copied with its hooks, which copies what they write to."""
        op = self.op(model)
        model[1].on = False
        del model[1].barrier  # holds a lock, which cannot be copied
        twin = copy.deepcopy(model)
        twin(torch.full((4, 2), 2.0))
        x = torch.ones(4, 2)
        assert torch.equal(run(TorchNetwork([op]), {"x": x})["h"], self.expected(model, x))


class TestModelsThatAreShared:
    def test_evaluating(self) -> None:
        """Networks of their own, in modes that all mean evaluation, over one model."""
        model = built(lambda: seeded(Image), "sgd")
        twin = seeded(Image).eval()
        data = batches(8, (1, 8, 8))
        with torch.no_grad():
            expected = [twin(batch["x"]) for batch in data]

        def work(mode: str) -> bool:
            network = TorchNetwork([ModelOp(model, "x", "y")])
            for epoch in range(1, 11):
                results = run_all(network, data, mode=mode, epoch=epoch)
                if not all(map(torch.equal, [one["y"] for one in results], expected)):
                    return False
            return True

        modes = ["eval", "test", "infer", "infer"]
        assert at_once(*(lambda mode=mode: work(mode) for mode in modes)) == [True] * 4
        assert not any(module.training for module in model.modules())

    def test_a_mode_is_the_models_own(self) -> None:
        """An evaluating pass in another thread switches a training one, as it would in torch."""
        norm = nn.BatchNorm1d(2, track_running_stats=True)
        inside, switched = threading.Event(), threading.Event()

        class Pause(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    inside.set()
                    assert switched.wait(WAIT)
                return x

        model = built(nn.Sequential(Pause(), norm), "sgd")
        training, evaluating = (TorchNetwork([ModelOp(model, "x", "y")]) for _ in range(2))
        x = torch.tensor([[0.0, 0.0], [2.0, 4.0]])

        def evaluate() -> None:
            assert inside.wait(WAIT)
            run(evaluating, {"x": x}, "eval")
            switched.set()

        result, _ = at_once(lambda: run(training, {"x": x}, "train"), evaluate)
        normal = nn.BatchNorm1d(2).eval()(x).detach()
        assert torch.equal(result["y"], normal)  # not -1 and 1, as a training pass has them

    def test_a_lock_around_each_step_keeps_modes_apart(self) -> None:
        model, twin = twins(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        model = built(model, sgd())
        lock = threading.Lock()
        data = [{"x": batch["x"][:, :2]} for batch in batches(30)]

        def use(mode: str) -> list[float]:
            network = TorchNetwork(regression(model))
            seen = []
            with network(mode=mode, epoch=1):
                for batch in data:
                    with lock:
                        seen += losses([network.run_step(batch)])
            return seen

        seen, _ = at_once(lambda: use("train"), lambda: use("eval"))
        assert seen == trained_by_hand(twin, [batch["x"] for batch in data])
        assert same_weights(model, twin)


class TestParametersThatAreShared:
    @pytest.mark.parametrize("tied", [False, True], ids=["one model", "tied weights"])
    def test_training_with_a_lock_around_each_step(self, tied: bool) -> None:
        """Exactly what a hand-written loop does with the same batches in the same order."""
        first, twin = twins(mlp)
        models: list[Any] = [built(first, sgd())]
        for _ in range(5):
            other: Any = mlp()
            for mine, theirs in ((other[place], models[0][place]) for place in (0, 2)):
                mine.weight, mine.bias = theirs.weight, theirs.bias
            models.append(built(other, sgd()) if tied else models[0])
        lock = threading.Lock()
        order: list[torch.Tensor] = []

        def train(place: int) -> None:
            network = TorchNetwork(regression(models[place]))
            with network(mode="train", epoch=1):
                for batch in batches(20, seed=place):
                    with lock:
                        order.append(batch["x"])
                        network.run_step(batch)

        at_once(*(lambda place=place: train(place) for place in range(6)))
        trained_by_hand(twin, order)
        assert len(order) == 120
        assert same_weights(first, twin)
        assert all(parameter.grad is None for parameter in first.parameters())

    def test_two_networks_over_one_model_in_one_thread(self) -> None:
        """Both are open and stepped in turn."""
        model, twin = twins(mlp)
        model = built(model, sgd())
        outer, inner = TorchNetwork(regression(model)), TorchNetwork(regression(model))
        data = batches(6)
        with outer(mode="train", epoch=1), inner(mode="train", epoch=1):
            for place, batch in enumerate(data):
                (inner if place % 2 else outer).run_step(batch)
        trained_by_hand(twin, [batch["x"] for batch in data])
        assert same_weights(model, twin)


def test_networks_with_models_of_their_own_train_as_if_they_were_alone() -> None:
    pairs = [twins(mlp, seed) for seed in (0, 1)]
    networks = [TorchNetwork(regression(built(model, sgd()))) for model, _ in pairs]
    data = [batches(40, seed=seed) for seed in (0, 1)]
    at_once(
        *(lambda place=place: run_all(networks[place], data[place], "train") for place in (0, 1))
    )
    for (model, twin), own in zip(pairs, data, strict=True):
        trained_by_hand(twin, [batch["x"] for batch in own])
        assert same_weights(model, twin)


class TestOneOpenedNetwork:
    def test_threads_may_step_it_where_nothing_is_trained(self) -> None:
        model = built(lambda: seeded(mlp), None)
        twin = seeded(mlp).eval()
        met = threading.Barrier(4)
        grad_modes: list[bool] = []

        def meet(x: torch.Tensor) -> torch.Tensor:
            met.wait(WAIT)
            grad_modes.append(torch.is_grad_enabled())
            return 2 * x

        network = TorchNetwork([LambdaOp(meet, "x", "x"), ModelOp(model, "x", "y")])
        data = batches(12)

        def work(place: int) -> bool:
            fits = True
            for batch in data[place::4]:
                result = network.run_step(batch)
                with torch.no_grad():
                    fits &= torch.equal(result["y"], twin(2 * batch["x"]))
            return fits and torch.is_grad_enabled()

        with network(mode="infer", epoch=1):
            seen = at_once(*(lambda place=place: work(place) for place in range(4)))
        assert seen == [True] * 4
        assert grad_modes == [False] * 12
        assert is_free(network)


class TestSettingsOfAThread:
    def test_a_callers_autocast_and_gradients_are_its_own(self) -> None:
        met = threading.Barrier(2)
        seen: dict[str, tuple[bool, bool]] = {}

        class Look(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                met.wait(WAIT)
                seen[state["mode"]] = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
                met.wait(WAIT)
                return data

        def train() -> Any:
            with torch.autocast("cpu"):
                result = run(networks[0], {"x": torch.ones(2, 2)}, "train")
                assert torch.is_autocast_enabled("cpu")
            return result["y"].dtype

        def infer() -> Any:
            with torch.no_grad():
                result = run(networks[1], {"x": torch.ones(2, 2)}, "infer")
                assert not torch.is_grad_enabled()
            return result["y"].dtype

        networks = [
            TorchNetwork([Look("x", "x"), ModelOp(model, "x", "y"), *update(model)])
            for model in (built(line), built(line))
        ]
        assert at_once(train, infer) == [torch.bfloat16, torch.float32]
        assert seen == {"train": (True, True), "infer": (False, False)}

    def test_a_profile_that_another_thread_takes(self) -> None:
        """It is taken, and put away, while steps are under way: none is lost or changed."""
        model, twin = twins(mlp)
        network = TorchNetwork(regression(built(model, sgd())))
        data = batches(200)
        begun, done = threading.Event(), threading.Event()

        def train() -> list[float]:
            seen = []
            with network(mode="train", epoch=1):
                for batch in data:
                    seen += losses([network.run_step(batch)])
                    begun.set()
                assert done.wait(WAIT)
                assert losses([network.run_step(data[0])])
            return seen

        def watch() -> None:
            assert begun.wait(WAIT)
            for _ in range(20):
                with fastnet.profile(network):
                    pass
            done.set()

        seen, _ = at_once(train, watch)
        assert seen == trained_by_hand(twin, [batch["x"] for batch in [*data, data[0]]])[:-1]
        assert same_weights(model, twin)
        assert is_free(network)


class TestOneNetworkThatSeveralWant:
    def test_the_second_is_refused_and_the_first_unharmed(self) -> None:
        model, twin = twins(mlp)
        network = TorchNetwork(regression(built(model, sgd())))
        data = batches(20)
        ready, inside, tried = threading.Event(), threading.Event(), threading.Event()

        def first() -> list[Any]:
            assert ready.wait(WAIT)
            with network(mode="train", epoch=1):
                results = [network.run_step(batch) for batch in data[:5]]
                inside.set()
                assert tried.wait(WAIT)
                assert network.ctx_state["mode"] == "train"
                assert network.ctx_ops == network.ops
                return results + [network.run_step(batch) for batch in data[5:]]

        def second() -> int:
            refused = 0
            configured = network(mode="eval", epoch=9)  # while nobody was in
            ready.set()
            assert inside.wait(WAIT)
            for attempt in (configured.__enter__, lambda: network(mode="eval", epoch=9)):
                # at once: the first does not leave before both have tried
                with pytest.raises(ValueError, match="TorchNetwork is open already"):
                    attempt()
                refused += 1
            tried.set()
            return refused

        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(second)
            results = pool.submit(first).result(WAIT)
            assert late.result(WAIT) == 2
        assert losses(results) == trained_by_hand(twin, [batch["x"] for batch in data])
        assert is_free(network)

    def test_a_configuration_belongs_to_its_thread(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        barrier = threading.Barrier(2)

        def configure(mode: str, first: bool) -> str:
            network(mode=mode, epoch=1)
            barrier.wait(WAIT)
            if not first:
                barrier.wait(WAIT)
            with network:
                seen: str = network.ctx_state["mode"]
            if first:
                barrier.wait(WAIT)
            return seen

        assert at_once(lambda: configure("train", True), lambda: configure("eval", False)) == [
            "train",
            "eval",
        ]


def test_nothing_is_locked_while_a_scheduler_is_asked() -> None:
    """Nothing is locked while a scheduler says what it stands for."""
    op = LambdaOp(lambda x: x + 1, "x", "y")

    class Asking:
        asks = False

        def get_current_value(self, epoch: int) -> Any:
            if self.asks:
                self.asks = False
                network.explain("infer")
                thread = threading.Thread(target=network.explain, args=("train",), daemon=True)
                thread.start()
                thread.join(WAIT)
                assert not thread.is_alive()
            return op

        def get_all_values(self) -> list[Any]:
            return [op]

    scheduler = Asking()
    network = TorchNetwork([scheduler])
    op.outputs = ["z"]
    scheduler.asks = True
    assert run(network, {"x": 1}) == {"x": 1, "z": 2}


def update(model: Any) -> Iterator[Any]:
    yield LambdaOp(lambda y: y.float().mean(), "y", "loss")
    yield UpdateOp(model, "loss")
