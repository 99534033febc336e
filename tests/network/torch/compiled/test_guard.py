"""Data in C, weak references and hooks that ops lead to: a change makes another program."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import (
    QUICK,
    Pair,
    batches,
    built,
    captured,
    fallbacks,
    falls_back,
    network_of,
)

VARIABLE: ContextVar[float] = ContextVar("VARIABLE", default=1.0)
LOCAL = threading.local()
LOCAL.factors = [1.0]
VALUE = multiprocessing.Value("d", 1.0)
ARRAY = multiprocessing.Array("i", [1, 1])


class Scope(threading.local):
    """Has a factor that is another one in each thread."""

    def __init__(self) -> None:
        self.factor = 1.0


SCOPE = Scope()


def set_first(value: float) -> None:
    LOCAL.factors[0] = value


def set_element(value: float) -> None:
    ARRAY[1] = int(value)


STATES: dict[str, tuple[Callable[[], Any], Callable[[float], Any]]] = {
    "ContextVar": (lambda: VARIABLE.get(), lambda value: VARIABLE.set(value)),
    "ContextVar's get": (VARIABLE.get, lambda value: VARIABLE.set(value)),
    "local": (lambda: LOCAL.factors[0], set_first),
    "subclass of local": (lambda: SCOPE.factor, lambda value: setattr(SCOPE, "factor", value)),
    "Value": (lambda: VALUE.value, lambda value: setattr(VALUE, "value", value)),
    "Array": (lambda: ARRAY[1], set_element),
}


@pytest.mark.parametrize("name", STATES)
def test_changed_state_makes_another_program(name: str) -> None:
    read, write = STATES[name]
    write(1.0)
    network = TorchNetwork([LambdaOp(lambda x: x * read(), "x", "y")], compile=QUICK)
    with network("infer", 1):
        for factor in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0, 1.0, 3.0):
            write(factor)
            result = network.run_step({"x": torch.ones(2)})["y"]
            assert result.tolist() == [factor] * 2
    assert captured(network) == 2
    assert "has changed" in network.traces[1].reason


@pytest.mark.parametrize("name", STATES)
def test_trace_that_changes_state_is_refused(name: str) -> None:
    read, write = STATES[name]
    write(1.0)

    def fn(x: torch.Tensor) -> torch.Tensor:
        write(read() + 1)
        return x * read()

    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    with falls_back(network, "running the ops changes", "infer"):
        for factor in (2.0, 3.0, 4.0):
            assert network.run_step({"x": torch.ones(1)})["y"].item() == factor
            assert read() == factor


def test_state_of_another_thread_is_not_read() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x * SCOPE.factor, "x", "y")], compile=QUICK)
    SCOPE.factor = 2.0
    results: list[float] = []

    def run() -> None:
        for _ in range(3):
            results.append(network.run_step({"x": torch.ones(1)})["y"].item())

    with network("infer", 1):
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        run()
    assert results == [2.0] * 3 + [1.0] * 3 + [2.0] * 3
    assert captured(network) == 2


_COLLECTOR: ContextVar[Any] = ContextVar("collector", default=None)


class Collecting(nn.Module):
    """Collects outputs as the models of transformers do: in a variable set around its forward."""

    collector = _COLLECTOR

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.layer.register_forward_hook(self._collect)

    def _collect(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        collected = self.collector.get()
        if collected is not None:
            collected.append(output)

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[list[torch.Tensor]]:
        collected: list[torch.Tensor] = []
        token = self.collector.set(collected)
        try:
            yield collected
        finally:
            self.collector.reset(token)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self._collecting() as collected:
            self.layer(x)
        return collected[0]


def test_model_that_sets_and_resets_a_variable_stays_compiled() -> None:
    pair = Pair(Collecting)
    with pair.network("train", 1):
        for batch in batches(5):
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()
    assert _COLLECTOR.get() is None


class Log:
    """Collects what is appended to it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.entries: list[Any] = []
        self.factor = factor

    def append(self, entry: Any) -> None:
        self.entries.append(entry)


class ListLog(list[Any]):
    """A list that can be referred to weakly."""

    entries = property(lambda self: self)


REFERENCES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "ref": (weakref.ref, lambda held: held()),
    "proxy": (weakref.proxy, lambda held: held),
    "method": (lambda log: weakref.WeakMethod(log.append), lambda held: held().__self__),
    "set": (lambda log: weakref.WeakSet([log]), lambda held: next(iter(held))),
    "dict": (lambda log: weakref.WeakValueDictionary(a=log), lambda held: held["a"]),
    "keys": (lambda log: weakref.WeakKeyDictionary({log: 1}), lambda held: next(iter(held))),
    "in a list": (lambda log: [weakref.ref(log)], lambda held: held[0]()),
}


def op_with(log: Any, name: str, work: Callable[[Any, torch.Tensor], torch.Tensor]) -> LambdaOp:
    refer, read = REFERENCES[name]
    held = refer(log)
    return LambdaOp(lambda x: work(read(held), x), "x", "y")


def append(log: Any, x: torch.Tensor) -> torch.Tensor:
    log.append(x)
    return x + 1


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("kind", [Log, ListLog])
def test_log_behind_a_weak_reference_gets_each_tensor_once(name: str, kind: Any) -> None:
    if kind is ListLog and name in ("set", "keys", "method"):
        pytest.skip("lists are not hashable, and their methods have no function")
    log = kind()
    network = TorchNetwork([op_with(log, name, append)], compile=QUICK)
    with falls_back(network, "running the ops changes", "infer"):
        for place in range(4):
            network.run_step({"x": torch.full((1,), float(place))})
    assert [type(one) for one in log.entries] == [torch.Tensor] * 4
    assert [one.tolist() for one in log.entries] == [[float(place)] for place in range(4)]


@pytest.mark.parametrize("name", REFERENCES)
def test_attribute_behind_a_weak_reference_is_compared(name: str) -> None:
    log = Log()
    network = TorchNetwork([op_with(log, name, lambda log, x: x * log.factor)], compile=QUICK)
    with network("infer", 1):
        for factor in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0):
            log.factor = factor
            assert network.run_step({"x": torch.ones(1)})["y"].item() == factor
    assert captured(network) >= 2


def test_referents_are_not_kept_alive() -> None:
    log = Log(factor=2.0)
    held = weakref.ref(log)

    def fn(x: torch.Tensor) -> torch.Tensor:
        log = held()
        return x if log is None else x * log.factor

    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    with network("infer", 1):
        for place in range(6):
            if place == 3:
                del log
                gc.collect()
                assert held() is None
            result = network.run_step({"x": torch.ones(1)})["y"].item()
            assert result == (2.0 if place < 3 else 1.0)
    assert captured(network) == 2


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_hooks_of_all_optimizers_are_called_from_the_next_step(register: Any) -> None:
    network, calls = network_of(built()), []
    with contextlib.ExitStack() as stack, network("train", 1):
        for place, batch in enumerate(batches(6)):
            if place == 3:
                handle = register(lambda optimizer, args, kwargs: calls.append(optimizer))
                stack.callback(handle.remove)
            network.run_step(batch)
    assert len(calls) == 3
    assert "SGD has hooks around its step" in fallbacks(network)[0]


def test_hooks_of_all_optimizers_do_not_matter_without_one() -> None:
    network = TorchNetwork([ModelOp(built(), "x", "pred")], compile=QUICK)
    with network("infer", 1):
        for batch in batches(3):
            network.run_step(batch)
    assert captured(network) == 1


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("had_hooks", [False, True])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hook_on_a_parameter_is_called_from_the_next_step(register: str, had_hooks: bool) -> None:
    model, calls = built(), []
    network = network_of(model)
    weight = next(model.parameters())
    if had_hooks:
        # torch leaves an empty table of hooks behind.
        getattr(weight, register)(lambda *_: None).remove()
    with network("train", 1):
        for place, batch in enumerate(batches(6)):
            if place == 3:
                getattr(weight, register)(lambda *_: calls.append(1))
            network.run_step(batch)
    assert len(calls) == 3
    assert "a parameter has hooks" in fallbacks(network)[0]


def test_private_op_of_an_own_op_is_compared() -> None:
    class Own(TensorOp):
        def __init__(self) -> None:
            super().__init__(["pred", "y"], "loss", mode="!infer")
            self._loss = CrossEntropy(["pred", "y"], "loss", from_logits=True)

        def forward(self, data: Any, state: Any) -> Any:
            return self._loss.forward(data, state)

    op, model = Own(), built()
    (batch,) = batches(1)
    losses = []
    for compile in (QUICK, False):
        network = TorchNetwork([ModelOp(model, "x", "pred"), op], compile=compile)
        for smoothing in (0.0, 0.5):
            op._loss.label_smoothing = smoothing
            with network("eval", 1):
                losses.append([float(network.run_step(batch)["loss"]) for _ in range(4)])
    assert losses[:2] == losses[2:]
    assert losses[0] != losses[1]
