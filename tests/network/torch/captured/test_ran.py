"""Only what code that runs in a step can reach counts, and what it reads of its context does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.network.torch.captured.steps import QUICK, falls_back

SCALE: ContextVar[float] = ContextVar("SCALE", default=2.0)
X = torch.arange(3.0)


def network_of(fn: Callable[[torch.Tensor], torch.Tensor]) -> TorchNetwork:
    return TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE.get()


def within(x: torch.Tensor) -> torch.Tensor:
    token = SCALE.set(5.0)
    try:
        return scaled(x)
    finally:
        SCALE.reset(token)


def counted(x: torch.Tensor) -> torch.Tensor:
    SCALE.set(SCALE.get() + 1)
    return x * SCALE.get()


def test_another_value_of_a_context_variable_counts_in_the_next_step() -> None:
    network = network_of(scaled)

    def steps() -> None:
        with network("infer", 1):
            for scale in (2.0, 2.0, 3.0, 3.0, 3.0, 2.0):
                SCALE.set(scale)
                assert torch.equal(network.run_step({"x": X})["y"], X * scale)

    copy_context().run(steps)
    assert [one.fallback for one in network.traces] == [None, None]
    assert "the context variable 'SCALE'" in network.traces[1].reason


def test_a_context_variable_that_is_set_for_a_while() -> None:
    network = network_of(within)
    with network("infer", 1):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": X})["y"], X * 5)
    assert [one.fallback for one in network.traces] == [None]
    assert SCALE.get() == 2


def test_a_context_variable_that_stays_set_is_a_reason() -> None:
    network = network_of(counted)

    def steps() -> list[Any]:
        with network("infer", 1), pytest.warns(UserWarning, match="op by op"):
            return [network.run_step({"x": X})["y"] for _ in range(4)]

    seen = copy_context().run(steps)
    for result, scale in zip(seen, (3, 4, 5, 6), strict=True):
        assert torch.equal(result, X * scale)
    (trace,) = network.traces
    assert trace.fallback is not None
    assert trace.fallback.startswith("running the ops changes LambdaOp")
    assert "SCALE" in trace.fallback


@contextlib.contextmanager
def guard() -> Iterator[None]:
    yield


class Laden(TensorOp):
    """Has a method that no step calls, with very much behind it, and something that goes on."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="y")
        self.table = False
        self.many = _with_much_behind()

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return self.many(data) if self.table else data * 2

    @guard()
    def seldom(self) -> None:
        """Be wrapped in a generator that has not begun."""


def _with_much_behind() -> Callable[[torch.Tensor], torch.Tensor]:
    values = [[float(place)] for place in range(30_000)]

    def add(data: torch.Tensor) -> torch.Tensor:
        return data + values[3][0]

    return add


def test_what_a_function_has_that_never_runs_does_not_count() -> None:
    op = Laden()
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": X})["y"], X * 2)
        assert [one.fallback for one in network.traces] == [None]
        op.table = True
        with pytest.warns(UserWarning, match="there is too much behind"):
            assert torch.equal(network.run_step({"x": X})["y"], X + 3)
        op.many.__closure__[0].cell_contents[3][0] = 4.0  # type: ignore[attr-defined]
        assert torch.equal(network.run_step({"x": X})["y"], X + 4)
        op.table = False
        assert torch.equal(network.run_step({"x": X})["y"], X * 2)


def test_a_function_whose_result_is_kept_counts_though_it_does_not_run() -> None:
    held = {"scale": 2.0}

    @functools.cache
    def scale() -> float:
        return held["scale"]

    network = network_of(lambda x: x * scale())
    with network("infer", 1):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": X})["y"], X * 2)
        held["scale"] = 3.0
        # what is kept counts until it is cleared, as without compiling
        assert torch.equal(network.run_step({"x": X})["y"], X * 2)
        held["scale"] = 4.0
        scale.cache_clear()
        for _ in range(3):
            assert torch.equal(network.run_step({"x": X})["y"], X * 4)


def test_nothing_without_values_gets_into_a_cache() -> None:
    @functools.lru_cache(maxsize=1)
    def ramp(size: int) -> torch.Tensor:
        return torch.arange(float(size))

    network = network_of(lambda x: x + ramp(2).sum() + ramp(3).sum())
    with falls_back(network, "works out what a cache is to keep", "infer"):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": X})["y"], X + 4)
    assert torch.equal(ramp(3), torch.tensor([0.0, 1.0, 2.0]))


def test_a_network_that_an_op_runs_is_another_one_in_the_next_step() -> None:
    held = {"scale": 2.0}
    inner = TorchNetwork([LambdaOp(lambda x: x * held["scale"], "x", "y")])
    network = network_of(lambda x: inner.run_step({"x": x})["y"])
    with (
        inner("infer", 1),
        falls_back(network, "calls run_step of a network", "infer"),
    ):
        for scale in (2.0, 2.0, 2.0, 3.0, 3.0):
            held["scale"] = scale
            assert torch.equal(network.run_step({"x": X})["y"], X * scale)


def test_a_function_that_runs_later_counts_from_then_on() -> None:
    held = {"on": False, "scale": 2.0}

    def seldom(x: torch.Tensor) -> torch.Tensor:
        return x * held["scale"]

    def choose(x: torch.Tensor) -> torch.Tensor:
        return seldom(x) if held["on"] else x

    network = network_of(choose)
    with network("infer", 1):
        for on, scale in [(False, 2.0)] * 2 + [(True, 2.0)] * 3 + [(True, 3.0)] * 2:
            held.update(on=on, scale=scale)
            expected = X * scale if on else X
            assert torch.equal(network.run_step({"x": X})["y"], expected)
    assert [one.fallback for one in network.traces] == [None] * 3
