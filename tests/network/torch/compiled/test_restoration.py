"""A trace that fails, wherever it does, leaves the objects of a program as they were."""

from __future__ import annotations

import io
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet.backend.torch import optimizer_step, update
from fastnet.backend.torch.ema import WeightAverager
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled import capture, program_set, step_state
from fastnet.network.torch.compiled.program_set import TorchProgramSet
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    batches,
    built,
    cross_entropy,
    fallbacks,
)

pytestmark = pytest.mark.filterwarnings("ignore:Steps of mode")


def contents(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Describe everything that a value holds, with identities and the values of tensors."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, types.ModuleType)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    # Tuples and other constants may be equal ones.
    constant = isinstance(value, (tuple, np.generic, torch.Size, types.MethodType))
    described: list[Any] = [type(value), None if constant else id(value)]
    if isinstance(value, torch.Tensor):
        assert not hasattr(value, "fake_mode")
        values = None if value.is_meta else value.tolist()
        described += [value.data_ptr(), values, value.requires_grad, value.grad_fn]
        described += [contents(value.grad, seen) if value.is_leaf else None]
        described += [list(value._backward_hooks or ())]
        return described
    if isinstance(value, (np.ndarray, bytearray)):
        return [*described, bytes(value)]
    if isinstance(value, dict):
        described += [[contents(key, seen), contents(value[key], seen)] for key in value]
    elif isinstance(value, (list, tuple, deque)):
        described += [contents(item, seen) for item in value]
    elif isinstance(value, set):
        described += [sorted(map(repr, value))]
    elif isinstance(value, types.FunctionType):
        described += [contents(value.__defaults__, seen)]
    for name in getattr(type(value), "__slots__", ()):
        described.append(contents(getattr(value, name, "absent"), seen))
    if isinstance(vars(value) if hasattr(value, "__dict__") else None, dict):
        described += [[name, contents(held, seen)] for name, held in sorted(vars(value).items())]
    return described


def is_traced() -> bool:
    return bool(torch._C._len_torch_dispatch_stack())


# A trace restores attributes, but not the position of a file.
_PENDING, _ERRORS = io.BytesIO(b"1"), [RuntimeError]


def is_pending() -> bool:
    return _PENDING.tell() == 0


def inject() -> None:
    """Raise an error, once."""
    if _PENDING.read(1):
        raise _ERRORS[0]("injected")


class Raising(torch.autograd.Function):
    """Raises in the backward pass of a trace."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if is_traced():
            inject()
        return gradient


class Slots:
    __slots__ = ("gone", "new")

    def __init__(self) -> None:
        self.gone = 1


class Holding(TensorOp):
    """Writes, in a trace only, to all kinds of data that it holds, and then raises."""

    def __init__(self, key: str, model: nn.Module) -> None:
        super().__init__(inputs=key, outputs=key)
        self.model = [model]
        self.counter = Counter(calls=1)
        self.ordered = OrderedDict(a=1, b=2, c=3)
        self.listed, self.queued, self.named = [1, 2], deque([1, 2], maxlen=2), {1, 2}
        self.slots = Slots()
        self.array, self.bytes = np.zeros(3), bytearray(b"abc")
        self.left, self.right = torch.ones(2), torch.zeros(2)
        self.leaf = torch.ones(2, requires_grad=True)
        self.function = lambda x=1: x

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        if is_traced() and is_pending():
            self._write(data, state)
            inject()
        return data

    def _write(self, data: torch.Tensor, state: Any) -> None:
        self.counter["calls"] += 1
        self.ordered["d"] = 4
        self.ordered.move_to_end("a")
        self.listed.append(data)
        self.queued.append(data)
        self.named.add(data)
        del self.slots.gone
        self.slots.new = data
        self.array += 1
        self.bytes += b"d"
        self.left.add_(1)
        self.right.data = data.detach()
        self.leaf.register_hook(lambda gradient: gradient * 2)
        (self.leaf * self.leaf).sum().backward()
        self.leaf.requires_grad_(False)
        self.function.__defaults__ = (data,)
        self.new = data
        (model,) = self.model
        model.current_optimizer.step = None
        model.current_optimizer = None
        model.new = data
        model[0].register_forward_hook(lambda *args: None)
        model[0].weight = nn.Parameter(data)
        model[1].register_buffer("new", data)
        state["deferred"]["new"] = [data]
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)


def _network(compile: Any, merge: int, place: int | None = None, loss: Any = None) -> TorchNetwork:
    model = built(optimizer=OPTIMIZERS["adam"])
    ema = EMA(model, decay=0.5)
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(loss or cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss", merge_grad=merge, clip_norm=0.05, outputs={"grad_norm": "norm"}),
        ema,
        LRSchedule(model, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)),
    ]
    if place is not None:
        ops.insert(place, Holding("x", model))
    return TorchNetwork(ops, compile=compile)


def _loop(merge: int, data: list[dict[str, Any]]) -> Any:
    """Train as `_network` does, by hand; return the model and the average."""
    model = built(optimizer=OPTIMIZERS["adam"])
    optimizer, average = model.current_optimizer, None
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for number, batch in enumerate(data, 1):
        model.train()
        (functional.cross_entropy(model(batch["x"]), batch["y"]) / merge).backward()
        if number % merge:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        now = [one.detach().clone() for one in model.parameters()]
        if average is not None:
            now = [(one + other) / 2 for one, other in zip(average, now, strict=True)]
        average = now
    return model, average


def _first_difference(before: Any, after: Any) -> Any:
    """Return the path to the first difference, and both values; None if there is none."""
    if before == after:
        return None
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        return [before[0], *_first_difference(one, other)]
    return [before, after]


@contextmanager
def _compared(network: TorchNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Compare everything that the ops hold before and after each trace; count them."""
    compile_for, count = TorchProgramSet.compile_for, [0]

    def compare(*args: Any) -> None:
        before = contents(network.ops)
        try:
            compile_for(*args)
        finally:
            count[0] += 1
            difference = _first_difference(before, contents(network.ops))
            assert difference is None, " ".join(map(str, difference))[-300:]
            assert torch.is_grad_enabled()
            assert torch.get_default_dtype() is torch.float32

    monkeypatch.setattr(TorchProgramSet, "compile_for", compare)
    yield count


_PATCHED: dict[str, tuple[Any, str]] = {
    "merge": (update.TorchUpdate, "_merge_gradients"),
    "mean of merged gradients": (update, "accumulate_gradients"),
    "clip": (nn.utils, "clip_grad_norm_"),
    "optimizer step": (step_state, "_update"),
    "clear gradients": (optimizer_step, "clear_gradients"),
    "follow": (WeightAverager, "move"),
    "outputs": (capture, "_read_outputs"),
    "bind numbers": (capture, "bind_numbers"),
    "bind tensors": (capture, "_bind_held_tensors"),
    "lower": (program_set, "lower"),
    "make program": (program_set, "TorchProgram"),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "phase", ["first op", "op before the update", "last op", "backward", *_PATCHED]
)
def test_failed_trace_restores_everything(
    phase: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    _PENDING.seek(0)
    _ERRORS[0] = error
    place = {"first op": 0, "op before the update": 2, "last op": 5}.get(phase)
    loss = cross_entropy
    if phase == "backward":
        loss = lambda pred, y: cross_entropy(Raising.apply(pred), y)  # noqa: E731
    network = _network(QUICK, 2, place, loss)
    if phase in _PATCHED:
        owner, name = _PATCHED[phase]
        original, only_traces = getattr(owner, name), owner not in (capture, program_set)

        def patched(*args: Any, **settings: Any) -> Any:
            if is_traced() or not only_traces:
                inject()
            return original(*args, **settings)

        monkeypatch.setattr(owner, name, patched)
    data, interrupted = batches(8), 0
    with _compared(network, monkeypatch) as count, network("train", 1):
        for batch in data:
            try:
                network.run_step(batch)
            except KeyboardInterrupt:
                interrupted += 1
    assert count[0] > 0
    assert not is_pending()
    assert interrupted == (error is KeyboardInterrupt)
    assert bool(fallbacks(network)) is (error is RuntimeError)
    model, average = _loop(2, data)
    for one, other in zip(network.models[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    (ema,) = [op for op in network.ops if isinstance(op, EMA)]
    for one, other in zip(ema.averaged.parameters(), average, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
