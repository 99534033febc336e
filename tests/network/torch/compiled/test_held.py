"""What ops hold and read besides tensors is never an old value, whatever it is kept in."""

from __future__ import annotations

import collections
import configparser
import dataclasses
import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.schedule import EpochScheduler
from tests.network.torch.compiled.steps import QUICK


class Holding(TensorOp):
    """Multiplies by what it reads of something that it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        super().__init__(inputs="x", outputs="y")
        self.held = held
        self.read = read

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return data * self.read(self.held)


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float = 2.0


class Behind:
    _scale = 2.0

    @property
    def scale(self) -> float:
        return type(self)._scale


class Two:
    def read(self) -> float:
        return 2.0


class Three(Two):
    def read(self) -> float:
        return 3.0


def _function(*, scale: float = 2.0) -> float:
    return scale


def _parser() -> Any:
    parser = configparser.ConfigParser()
    parser.read_dict({"a": {"scale": "2.0"}})
    return parser


def _with_scale(held: Any) -> Any:
    held.scale = 2.0
    return held


def _set(held: Any) -> None:
    held.scale = 3.0


def _get(held: Any) -> Any:
    return held.scale


def _put_named(held: Any) -> None:
    held["scale"] = 3.0


def _named(held: Any) -> Any:
    return held["scale"]


class Case(NamedTuple):
    make: Callable[[], Any]
    read: Callable[[Any], Any]
    change: Callable[[Any], Any]


CASES = {
    "slots": Case(Slots, _get, _set),
    "class_of_an_object": Case(Two, lambda h: h.read(), lambda h: setattr(h, "__class__", Three)),
    "property": Case(Behind, _get, lambda h: setattr(Behind, "_scale", 3.0)),
    "distribution": Case(lambda: _with_scale(torch.distributions.Normal(0.0, 1.0)), _get, _set),
    "schedule": Case(
        lambda: EpochScheduler({1: 2.0}),
        lambda h: h.epoch_dict[1],
        lambda h: h.epoch_dict.update({1: 3.0}),
    ),
    "keywords": Case(lambda: _function, lambda h: h(), lambda h: _put_named(h.__kwdefaults__)),
    "partial": Case(
        lambda: functools.partial(_named, {"scale": 2.0}),
        lambda h: h(),
        lambda h: _put_named(h.args[0]),
    ),
    "values_of_a_tensor": Case(
        lambda: torch.tensor([2.0]), lambda h: h.tolist()[0], lambda h: h.fill_(3.0)
    ),
    "memory_of_a_tensor": Case(
        lambda: torch.tensor([2.0]), lambda h: float(h.numpy()[0]), lambda h: h.fill_(3.0)
    ),
    "parser": Case(
        _parser, lambda h: h.getfloat("a", "scale"), lambda h: h.set("a", "scale", "3.0")
    ),
    "user_dict": Case(lambda: collections.UserDict(scale=2.0), _named, _put_named),
}


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("name", CASES)
def test_what_an_op_holds_counts_in_the_next_step(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Behind, "_scale", 2.0)
    monkeypatch.setitem(_function.__kwdefaults__, "scale", 2.0)
    case = CASES[name]
    held = case.make()
    network = TorchNetwork([Holding(held, case.read)], compile=QUICK)
    with network("infer", 1):
        for place in range(9):
            if place == 5:
                case.change(held)
            found = network.run_step({"x": torch.ones(1)})["y"].item()
            assert found == (2.0 if place < 5 else 3.0)


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_list_that_was_replaced_while_something_else_differed() -> None:
    first, second = Holding([2.0], lambda one: one[0]), Holding(1.0, lambda one: one)
    second.inputs = ["y"]
    network = TorchNetwork([first, second], compile=QUICK)

    def run() -> list[float]:
        with network("infer", 1):
            return [network.run_step({"x": torch.ones(1)})["y"].item() for _ in range(3)]

    assert run() == [2.0] * 3
    first.held, second.held = [2.0], 2.0
    assert run() == [4.0] * 3
    first.held[0], second.held = 5.0, 1.0
    assert run() == [5.0] * 3


def _layer() -> torch.nn.Module:
    return torch.nn.Linear(1, 1, bias=False).requires_grad_(False)


class Scaled(torch.nn.Module):
    """Multiplies by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _layer()
        self.scale, self.other = 1.0, 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Doubled(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def _exchange(table: dict[str, Any], *names: str) -> None:
    """Let values in the same order have other names."""
    values = dict(table)
    table.clear()
    for name in values:
        other = names[1 - names.index(name)] if name in names else name
        table[other] = values[name]


def _refill(table: dict[str, Any]) -> None:
    values = dict(table)
    table.clear()
    table.update(values)


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("places", [(3, 5), (3,), (5,)])
@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda m: setattr(m, "__dict__", dict(vars(m))), lambda m: setattr(m, "scale", 2.0)),
        (
            lambda m: setattr(m, "_modules", dict(m._modules)),
            lambda m: setattr(m, "layer", _layer()),
        ),
        (
            lambda m: setattr(m.layer, "_parameters", dict(m.layer._parameters)),
            lambda m: setattr(m.layer, "weight", _layer().weight),
        ),
        (
            lambda m: setattr(m, "_forward_hooks", type(m._forward_hooks)()),
            lambda m: m.register_forward_hook(lambda module, inputs, output: output * 5),
        ),
        (lambda m: _refill(vars(m)), lambda m: setattr(m, "scale", 2.0)),
        (lambda m: _refill(m._modules), lambda m: setattr(m, "layer", _layer())),
        (lambda m: None, lambda m: setattr(m, "__dict__", {**vars(m), "scale": 2.0})),
        (lambda m: None, lambda m: _exchange(vars(m), "scale", "other")),
        (lambda m: None, lambda m: setattr(m.layer, "__class__", Doubled)),
    ],
)
def test_tables_of_modules_that_are_replaced_or_refilled(
    change: Callable[[Any], Any], again: Callable[[Any], Any], places: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module = Scaled()
    network = TorchNetwork([LambdaOp(module, "x", "y")], compile=QUICK)
    x = torch.ones(1, 1)
    with network("infer", 1):
        for place in range(8):
            if place in places:
                (change if place == 3 else again)(module)
            assert torch.equal(network.run_step({"x": x})["y"], module(x)), place
    assert [one.fallback for one in network.traces if one.fallback] == []


class Chain(torch.nn.Module):
    """Calls its parts in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleDict({"tanh": torch.nn.Tanh(), "sigmoid": torch.nn.Sigmoid()})
        self.register_forward_hook(lambda module, inputs, output: output * 2)
        self.register_forward_hook(lambda module, inputs, output: output + 1)
        self.steps = {"double": lambda x: x * 2, "more": lambda x: x + 1}

    def forward(self, x: torch.Tensor) -> Any:
        for part in (*self.parts.values(), *self.steps.values()):
            x = part(x)
        return x


@pytest.mark.parametrize(
    "table",
    [lambda m: m.parts._modules, lambda m: m.steps, lambda m: m._forward_hooks],
    ids=["modules", "dict", "hooks"],
)
def test_what_is_in_another_order_counts_in_the_next_step(table: Callable[[Any], Any]) -> None:
    module = Chain()
    network = TorchNetwork([LambdaOp(module, "x", "y")], compile=QUICK)
    x = torch.ones(1)
    with network("infer", 1):
        for place in range(8):
            if place == 4:
                before, entries = module(x), table(module)
                first = next(iter(entries))
                if isinstance(entries, collections.OrderedDict):
                    entries.move_to_end(first)
                else:
                    entries[first] = entries.pop(first)
                assert not torch.equal(module(x), before)
            assert torch.equal(network.run_step({"x": x})["y"], module(x))
    assert [one.fallback for one in network.traces] == [None, None]


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("what", ["forward", "hook"])
def test_what_is_put_into_all_modules_counts_in_the_next_step(what: str, monkeypatch: Any) -> None:
    module = torch.nn.Tanh()
    network = TorchNetwork([LambdaOp(module, "x", "y")], compile=QUICK)
    x = torch.ones(1)
    with network("infer", 1), ExitStack() as stack:
        for place in range(8):
            if place == 4 and what == "forward":
                monkeypatch.setattr(torch.nn.Tanh, "forward", lambda self, x: x * 3)
            if place == 4 and what == "hook":
                handle = torch.nn.modules.module.register_module_forward_hook(
                    lambda module, inputs, output: output * 2
                )
                stack.callback(handle.remove)
            found = network.run_step({"x": x})["y"]
            assert torch.equal(found, module(x))
    told = [one.fallback for one in network.traces if one.fallback]
    assert told == (["there are hooks around the passes of all modules"] if what == "hook" else [])


TANH: Any = torch.nn.Tanh()


def _convolved(module: Any, x: torch.Tensor, *parameters: Any) -> torch.Tensor:
    return x * 5


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    ("cls", "name", "value", "fn"),
    [
        (torch.nn.Conv1d, "_conv_forward", _convolved, torch.nn.Conv1d(1, 1, 1)),
        (torch.nn.Tanh, "scale", 3.0, lambda x: x * TANH.scale),
        (torch.nn.Module, "scale", 3.0, lambda x: x * TANH.scale),
    ],
)
def test_what_is_put_into_classes_of_torch_counts_in_the_next_step(
    cls: Any, name: str, value: Any, fn: Any, monkeypatch: Any
) -> None:
    if name == "scale":
        monkeypatch.setattr(cls, name, 2.0, raising=False)
    if isinstance(fn, torch.nn.Module):
        fn.requires_grad_(False)
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    x = torch.ones(1, 1, 1)
    with network("infer", 1):
        for place in range(8):
            if place == 4:
                before = fn(x)
                monkeypatch.setattr(cls, name, value)
                assert not torch.equal(fn(x), before)
            assert torch.equal(network.run_step({"x": x})["y"], fn(x))
    assert [one.fallback for one in network.traces] == [None, None]


class Settings:
    """Settings as programs keep them."""

    scale = 2.0


def test_a_class_of_settings_that_code_reads_counts_in_the_next_step(monkeypatch: Any) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x * Settings.scale, "x", "y")], compile=QUICK)
    with network("infer", 1):
        for place in range(8):
            if place == 4:
                monkeypatch.setattr(Settings, "scale", 3.0)
            found = network.run_step({"x": torch.ones(1)})["y"].item()
            assert found == (2.0 if place < 4 else 3.0)
    assert [one.fallback for one in network.traces] == [None, None]
