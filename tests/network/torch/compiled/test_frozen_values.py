"""Values that a trace would freeze, and effects that a program would leave out."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled import capture as capture_module
from fastnet.op.tensorop import TensorOp
from tests.network.torch.compiled.steps import QUICK, captured, falls_back

FACTOR = 1.0


class Holding(TensorOp):
    """Computes with what it holds."""

    def __init__(self, held: Any, compute: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__(inputs="x", outputs="y")
        self.held = held
        self.compute = compute

    def forward(self, data: torch.Tensor, state: Any) -> Any:
        return self.compute(self.held, data)


def _caught(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    try:
        factor = float(held)
    except Exception:
        factor = 1.0
    return x * factor


def _assigned(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = torch.tensor([held, 0.0, 0.0])
    return y


@functools.singledispatch
def _scaled(x: Any) -> Any:
    return x


@_scaled.register
def _(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def _set_factor(value: float) -> None:
    globals()["FACTOR"] = value


def _network_inside() -> tuple[Any, Callable[[], None]]:
    op = Holding({"factor": 1.0}, lambda held, x: x * held["factor"])
    network = TorchNetwork([op])

    def compute(held: TorchNetwork, x: torch.Tensor) -> Any:
        with held("infer"):
            return held.run_step({"x": x})["y"]

    return Holding(network, compute), lambda: op.held.update(factor=5.0)


def _of_tensor(
    compute: Callable[[Any, torch.Tensor], Any], dtype: torch.dtype = torch.float32
) -> tuple[Any, Callable[[], Any]]:
    held = torch.tensor(1, dtype=dtype)
    return Holding(held, compute), lambda: held.fill_(2)


CHANGES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "torch.tensor": lambda: _of_tensor(lambda held, x: x * torch.tensor([held, 1.0, 1.0])),
    "as_tensor": lambda: _of_tensor(lambda held, x: x * torch.as_tensor([[held], [held]])),
    "new_tensor": lambda: _of_tensor(lambda held, x: x * x.new_tensor((held, 1.0, 1.0))),
    "assigned": lambda: _of_tensor(_assigned),
    "index": lambda: _of_tensor(lambda held, x: x[:, [held, 0]], torch.int64),
    "text": lambda: _of_tensor(lambda held, x: x * float(str(held)[7:-1])),
    "caught": lambda: _of_tensor(_caught),
    "another network": _network_inside,
    "singledispatch": lambda: (Holding(None, lambda held, x: _scaled(x)), lambda: _set_factor(5.0)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_changed_value_counts_from_the_next_step(name: str) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    _set_factor(1.0)
    op, change = CHANGES[name]()
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for step in range(6):
            if step == 3:
                change()
            found = network.run_step({"x": x})["y"]
            torch.testing.assert_close(found, op.forward(x, {}), rtol=0, atol=0)


def test_place_in_memory_is_not_a_constant() -> None:
    op = Holding(None, lambda held, x: x.as_strided((2,), (1,), x.storage_offset()))
    network = TorchNetwork([op], compile=QUICK)
    values = torch.arange(12.0)
    with falls_back(network, "looks at the values of tensors", "infer"):
        for place in (0, 0, 0, 4, 8):
            result = network.run_step({"x": values[place : place + 2]})["y"]
            assert result.tolist() == [place, place + 1]


def _queue() -> Any:
    items: SimpleQueue[float] = SimpleQueue()
    for place in range(9):
        items.put(float(place // 4))
    return items, SimpleQueue.get


def _file() -> Any:
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115
    file.write("".join(f"{place // 4}\n" for place in range(9)))
    file.seek(0)
    return file, lambda held: float(held.readline())


@pytest.mark.parametrize("make", [_queue, _file])
def test_items_of_queues_and_files_are_taken_once_a_step(make: Callable[[], Any]) -> None:
    held, take = make()
    network = TorchNetwork([Holding(held, lambda held, x: x + take(held))], compile=QUICK)
    with falls_back(network, "an op may advance", "infer"):
        found = [network.run_step({"x": torch.zeros(1)})["y"].item() for _ in range(9)]
    assert found == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_writes_to_arrays_on_disk_are_not_left_out(tmp_path: Path) -> None:
    held = np.memmap(tmp_path / "counts", np.float64, "w+", shape=3)

    def count(held: Any, x: torch.Tensor) -> torch.Tensor:
        held[0] += 1
        return x

    network = TorchNetwork([Holding(held, count)], compile=QUICK)
    with falls_back(network, "writes to a memmap", "infer"):
        for _ in range(5):
            network.run_step({"x": torch.zeros(1)})
    assert held.tolist() == [5, 0, 0]


def test_view_of_a_tensor_that_the_op_writes_to() -> None:
    held = torch.zeros(3)
    network = TorchNetwork([Holding(held, lambda held, x: held.add_(x)[:2])], compile=QUICK)
    with falls_back(network, "a view of a tensor that it holds and writes to", "infer"):
        results = [network.run_step({"x": torch.ones(3)})["y"] for _ in range(4)]
    assert [result.tolist() for result in results] == [[4, 4]] * 4


CALLS: list[int] = []


@torch.library.custom_op("fastnet_tests::note", mutates_args=())
def _note(x: torch.Tensor) -> None:
    CALLS.append(1)


@_note.register_fake
def _(x: torch.Tensor) -> None:
    return None


def _noted(held: None, x: torch.Tensor) -> torch.Tensor:
    torch.ops.fastnet_tests.note(x)
    return x


def test_operation_without_results_is_called_in_each_step() -> None:
    CALLS.clear()
    network = TorchNetwork([Holding(None, _noted)], compile=QUICK)
    with falls_back(network, "which returns nothing", "infer"):
        for _ in range(5):
            network.run_step({"x": torch.ones(1)})
    assert len(CALLS) == 5


@torch.library.custom_op("fastnet_tests::double", mutates_args=())
def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operation_that_an_op_names_stays_compiled() -> None:
    network = TorchNetwork([Holding(None, lambda held, x: _double(x))], compile=QUICK)
    with network("infer", 1):
        for _ in range(4):
            assert network.run_step({"x": torch.ones(1)})["y"].item() == 2
    assert captured(network) == 1


def test_interrupt_before_a_trace_leaves_multithreading_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(capture_module, "eager_recurrent_layers", interrupt)
    network = TorchNetwork([Holding(None, lambda held, x: x)], compile=QUICK)
    with pytest.raises(KeyboardInterrupt), network("infer", 1):
        network.run_step({"x": torch.ones(1)})
    assert torch.autograd.is_multithreading_enabled()
