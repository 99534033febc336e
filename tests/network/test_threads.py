"""Networks in threads: each its own, and one that several want."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import (
    batches,
    built,
    is_free,
    losses,
    mlp,
    run,
    run_all,
    same_weights,
    seeded,
    supervised,
)

WAIT = 300  # seconds, after which something hangs


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions in a thread each, all at once; give their results, or what one raised."""
    barrier = threading.Barrier(len(functions))

    def call(function: Callable[[], Any]) -> Any:
        barrier.wait(WAIT)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(WAIT) for future in [pool.submit(call, fn) for fn in functions]]


class TestTwoNetworks:
    def test_train_as_if_they_were_alone(self) -> None:
        data = [batches(30, seed=seed) for seed in (0, 1)]

        def train(place: int) -> tuple[list[float], Any]:
            model = built(models[place], "adam")
            network = TorchNetwork(supervised(model, merge_grad=place + 1))
            seen = []
            for epoch in (1, 2, 3):
                seen += losses(run_all(network, data[place], epoch=epoch))
                run_all(network, data[place], mode="eval", epoch=epoch)
            return seen, model

        models = [seeded(mlp, seed) for seed in (0, 1)]
        alone = [train(0), train(1)]
        models = [seeded(mlp, seed) for seed in (0, 1)]
        at_once = together(lambda: train(0), lambda: train(1))
        for (seen, model), (expected, twin) in zip(at_once, alone, strict=True):
            assert seen == expected
            assert same_weights(model, twin)

    def test_that_share_ops(self) -> None:
        """The same objects of ops that hold no model, between models of each network's own."""
        loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
        double = LambdaOp(lambda x: 2 * x, "x", "x")
        data = batches(40)

        def network_of(model: Any) -> TorchNetwork:
            return TorchNetwork([double, ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")])

        models = [built(lambda: seeded(mlp), "sgd") for _ in range(3)]
        networks = [network_of(model) for model in models]
        expected = losses(run_all(networks[2], data))
        seen = together(*(lambda n=n: losses(run_all(n, data)) for n in networks[:2]))
        assert seen == [expected, expected]
        assert same_weights(models[0], models[2])
        assert same_weights(models[1], models[2])

    def test_settings_of_one_are_not_the_others(self) -> None:
        """One takes gradients while the other has them off, in steps that run at the same time."""
        barrier = threading.Barrier(2)
        seen: dict[str, bool] = {}

        class Meet(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                barrier.wait(WAIT)
                seen[state["mode"]] = torch.is_grad_enabled()
                barrier.wait(WAIT)
                return data

        networks = [
            TorchNetwork([Meet("x", "x"), *supervised(built(mlp, "sgd"))]) for _ in range(2)
        ]
        (batch,) = batches(1)
        together(lambda: run(networks[0], batch, "train"), lambda: run(networks[1], batch, "eval"))
        assert seen == {"train": True, "eval": False}
        assert torch.is_grad_enabled()


class TestOneNetwork:
    def test_the_second_is_refused_and_the_first_unharmed(self) -> None:
        model = built(lambda: seeded(mlp), "sgd")
        twin = built(lambda: seeded(mlp), "sgd")
        network = TorchNetwork(supervised(model))
        data = batches(20)
        inside, tried = threading.Event(), threading.Event()

        def first() -> list[Any]:
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
            assert inside.wait(WAIT)
            for attempt in (configured.__enter__, lambda: network(mode="eval", epoch=9)):
                # at once: the first does not leave before both have tried
                with pytest.raises(ValueError, match="TorchNetwork is open already"):
                    attempt()
                refused += 1
            tried.set()
            return refused

        # configured first, entered late
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(second)
            results = pool.submit(first).result(WAIT)
            assert late.result(WAIT) == 2
        assert losses(results) == losses(run_all(TorchNetwork(supervised(twin)), data))
        assert same_weights(model, twin)
        assert is_free(network)

    def test_many_want_it(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        inside: list[int] = []
        crowded: list[int] = []

        def use() -> tuple[int, int]:
            entered = refused = 0
            while entered < 100 and refused < 1_000_000:
                try:
                    with network(mode="infer", epoch=1):
                        inside.append(1)
                        if len(inside) > 1:
                            crowded.append(1)
                        assert network.run_step({"x": 1}) == {"x": 1, "y": 2}
                        inside.pop()
                        entered += 1
                except ValueError as error:
                    assert "open already" in str(error)  # noqa: PT017
                    refused += 1
            return entered, refused

        counts = together(*[use] * 4)
        assert [entered for entered, _ in counts] == [100] * 4
        assert not crowded
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

        assert together(lambda: configure("train", True), lambda: configure("eval", False)) == [
            "train",
            "eval",
        ]


class TestChangesWhileOthersOpen:
    """What is known of the ops is worked out in one thread; another one finds all of it or none."""

    def test_an_opening_while_the_ops_are_read_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        run(network, {"x": 1})
        reading, looked = threading.Event(), threading.Event()

        class Waiting(LambdaOp):
            """Is read in the middle of the network's ops, and lets the other thread go on."""

            def get_fe_models(self) -> set[Any]:
                if threading.current_thread() is first and not reading.is_set():
                    reading.set()
                    looked.wait(0.5)
                return set()

        seen: list[Any] = []
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), Waiting(lambda y: y, "y", "z")]
        ops += [LambdaOp(lambda z: z * 10, "z", "w")]
        first = threading.Thread(target=lambda: seen.append(network._plans.find(*opening)))
        opening = ("infer", 1, "", frozenset[str]())
        network.ops[:] = ops
        first.start()
        assert reading.wait(WAIT)
        layout = network._plans.find(*opening)
        looked.set()
        first.join(WAIT)
        for each in (layout, *seen):
            assert each.ops == ops
            assert [writes for _, writes, _ in each.kernel.flow] == [("y",), ("z",), ("w",)]
        assert run(network, {"x": 1}) == {"x": 1, "y": 2, "z": 2, "w": 20}

    def test_many_openings_after_changes(self) -> None:
        for _ in range(50):
            network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
            run(network, {"x": 1})
            network.ops.append(LambdaOp(lambda y: y * 2, "y", "z"))

            def look(network: TorchNetwork = network) -> list[str]:
                flow = network._plans.find("infer", 1, "", frozenset()).kernel.flow
                return [key for _, writes, _ in flow for key in writes]

            expected = ["y", "z"]
            assert together(look, look, network.retrace, look) == [
                expected,
                expected,
                None,
                expected,
            ]
            assert run(network, {"x": 1}) == {"x": 1, "y": 2, "z": 4}

    def test_a_scheduler_that_asks_the_network_and_another_thread(self) -> None:
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
