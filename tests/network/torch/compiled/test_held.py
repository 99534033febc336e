"""What ops hold and read besides tensors is never an old value, whatever it is kept in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.network.torch.compiled.steps import QUICK


class Holding(TensorOp):
    """Multiplies by what it reads of something that it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        super().__init__(inputs="x", outputs="y")
        self.held = held
        self.read = read

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return data * self.read(self.held)


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    "read", [lambda held: held.tolist()[0], lambda held: float(held.numpy()[0])]
)
def test_values_of_a_tensor_that_an_op_reads_are_never_old(read: Callable[[Any], Any]) -> None:
    held = torch.tensor([2.0])
    network = TorchNetwork([Holding(held, read)], compile=QUICK)
    with network("infer", 1):
        for place in range(6):
            if place == 3:
                held.fill_(3.0)
            found = network.run_step({"x": torch.ones(1)})["y"].item()
            assert found == (2.0 if place < 3 else 3.0)


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
