"""Networks in threads: each its own, and one that several want."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
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


def test_two_networks_train_as_if_they_were_alone() -> None:
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
