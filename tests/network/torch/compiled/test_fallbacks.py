"""Errors of signal handlers while a step is compiled, steps beyond limits, and warnings."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fastnet import CompileOptions
from fastnet.network import TorchNetwork, step_times
from fastnet.network.torch.compiled.program_set import TorchProgramSet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import OneOf
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import (
    QUICK,
    Pair,
    batches,
    built,
    by_hand,
    captured,
    fallbacks,
    network_of,
    run_both,
)


def _identity(graph: Any, inputs: Any) -> Any:
    return graph


class Alarm(Exception):
    """Raised by a handler of a signal."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


class TestInterruptions:
    """An exception that a signal handler raises is the program's, and not the compiler's."""

    def test_alarm_in_the_compiler(self, alarm: None) -> None:
        rings = [True]

        def backend(graph: Any, inputs: Any) -> Any:
            if rings and rings.pop():
                signal.raise_signal(signal.SIGUSR1)
            return graph

        pair = Pair(compile=CompileOptions(backend=backend))
        data = batches(5)
        with pair.network("train", 1):
            with pytest.raises(Alarm):
                pair.network.run_step(data[0])
            assert not pair.network.traces
            # The step was taken, as by an interrupt after it.
            by_hand(pair.other, pair.optimizer, data[0])
            for batch in data[1:]:
                pair.step(batch)
        pair.assert_same_weights()
        assert captured(pair.network) == 1

    def test_alarm_in_a_trace(self, alarm: None) -> None:
        class Ringing(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if type(x) is not torch.Tensor:
                    signal.raise_signal(signal.SIGUSR1)
                return super().forward(x)

        network = network_of(built(lambda: Ringing(6, 3)), QUICK)
        (batch,) = batches(1)
        with network("train", 1):
            for _ in range(3):
                with pytest.raises(Alarm):
                    network.run_step(batch)
        assert not network.traces

    def test_alarm_in_a_verification(self, alarm: None) -> None:
        def backend(graph: Any, inputs: Any) -> Any:
            def run(*tensors: Any) -> Any:
                signal.raise_signal(signal.SIGUSR1)

            return run

        network = network_of(built(), CompileOptions(backend=backend))
        (batch,) = batches(1)
        with network("train", 1):
            network.run_step(batch)
            with pytest.raises(Alarm):
                network.run_step(batch)
        assert not fallbacks(network)

    def test_key_error_of_a_backend_is_no_missing_key(self) -> None:
        def backend(graph: Any, inputs: Any) -> Any:
            def run(*tensors: Any) -> Any:
                raise KeyError("registers")

            return run

        options = CompileOptions(backend=backend, verify=None)
        network = network_of(built(), options)
        (batch,) = batches(1)
        with network("train", 1):
            for _ in range(3):
                network.run_step(batch)
            with pytest.raises(KeyError, match="registers") as caught:
                network.run_step(batch)
        (note,) = caught.value.__notes__
        assert note.startswith("This was in a compiled step")


def test_reasons_known_before_the_trace_are_given_together() -> None:
    spectral = nn.utils.spectral_norm(nn.Linear(6, 3))
    model = built(lambda: spectral)
    draw = OneOf(LambdaOp(abs, "pred", "pred"), LambdaOp(torch.exp, "pred", "pred"))
    network = network_of(model, QUICK, between=[draw])
    with network("train", 1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.run_step(batches(1)[0])
    (reason,) = fallbacks(network)
    assert "a hook of torch.nn.utils.spectral_norm replaces a weight" in reason
    assert "; OneOf (op 1" in reason
    assert reason.endswith("draws one of its ops outside of torch")


def test_steps_beyond_the_limit_do_not_look_for_programs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = CompileOptions("eager", max_programs=2)
    network = TorchNetwork([LambdaOp(abs, "x", "y")], dynamic=False, compile=options)
    with network("infer", 1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (2, 3, 4, 5):
            network.run_step({"x": torch.ones(size)})
        assert len(fallbacks(network)) == 1
        monkeypatch.delattr(TorchProgramSet, "compile_for")
        for size in (4, 5, 2, 3, 6):
            assert network.run_step({"x": -torch.ones(size)})["y"].shape == (size,)
    assert len(fallbacks(network)) == 1
    assert network.traces[-1].reason == (
        "a batch has another input signature: 'x' has the shape (4,), not (3,)"
    )


class TestOtherTraining:
    """Other training in the process discards no program that is still valid."""

    def test_torch_compile_of_another_model(self) -> None:
        pair = Pair()
        with pair.network("train", 1):
            for place, batch in enumerate(batches(8)):
                if place == 4:
                    torch.compile(nn.Linear(6, 3), backend="eager")(batch["x"])
                pair.step(batch)
        assert captured(pair.network) == 1

    def test_first_step_of_another_network(self) -> None:
        pair, other = Pair(), Pair()
        with pair.network("train", 1), other.network("train", 1):
            for batch in batches(4):
                pair.step(batch)
            for batch in batches(4):
                other.step(batch)
            for batch in batches(4):
                pair.step(batch)
        assert captured(pair.network) == captured(other.network) == 1

    def test_network_of_the_same_model(self) -> None:
        model = built()
        networks = [network_of(model) for _ in range(2)]
        (batch,) = batches(1)
        for epoch in range(1, 5):
            for network in networks:
                with network("train", epoch):
                    for _ in range(3):
                        network.run_step(batch)
        assert [captured(network) for network in networks] == [1, 1]

    def test_layer_that_is_unfrozen_compiles_one_more(self) -> None:
        pair = Pair()
        sides = [model for model, _ in pair.sides()]
        for model in sides:
            model[0].requires_grad_(False)
        for epoch in range(1, 4):
            if epoch == 2:
                for model in sides:
                    model[0].requires_grad_(True)
            with pair.network("train", epoch):
                for batch in batches(4):
                    pair.step(batch)
        pair.assert_same_weights()
        assert captured(pair.network) == 2


class TestSlowPrograms:
    @pytest.mark.parametrize("ratio", [0.0, float("inf")])
    def test_slower_step_is_warned_of_once(
        self, ratio: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(step_times, "_MIN_RATIO", ratio)
        options = CompileOptions(backend=_identity)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sizes = [5] * 30 + [4] * 30
            data = [batches(1, size, seed=place)[0] for place, size in enumerate(sizes)]
            network = run_both(lambda compile: network_of(built(), compile), data, compile=options)
        texts = [str(one.message) for one in caught if "compiled step takes" in str(one.message)]
        assert captured(network) == 2
        assert len(texts) == (0 if ratio else 1)
        for text in texts:
            assert text.startswith("In mode 'train' a compiled step takes ")
            assert "the fastest of 20 and 2 steps. Make the network without `compile`" in text

    def test_steps_without_a_compiler_are_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_times, "_MIN_RATIO", 0.0)
        network = TorchNetwork([ModelOp(built(), "x", "pred")], compile=QUICK)
        with network("infer", 1), warnings.catch_warnings():
            warnings.simplefilter("error")
            for batch in batches(30):
                network.run_step(batch)
        assert captured(network) == 1


def test_comparing_is_a_part_of_the_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    finds: list[int] = []
    find = TorchProgramSet.find

    def counted(self: Any, batch: Any) -> Any:
        finds.append(len(finds))
        return find(self, batch)

    monkeypatch.setattr(TorchProgramSet, "find", counted)
    network = network_of(built(), CompileOptions(backend=_identity))
    with network("train", 1):
        for _ in range(23):
            network.run_step(batches(1)[0])
        timed = len(finds)
        network.run_step(batches(1)[0])
    # Twenty steps are timed with a second look, and then none.
    assert timed >= 2 * 20
    assert len(finds) == timed + 1
