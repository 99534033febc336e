"""Batches of compiled steps: shared tensors, nests, deleted keys, other devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled.program import TorchProgram
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import QUICK, built, captured, fallbacks, falls_back


@pytest.mark.parametrize(
    ("fn", "keys", "batch_of"),
    [
        (lambda x, y: x + 2 * y, ["x", "y"], lambda x, y: {"x": x, "y": y}),
        (lambda both: both[0] + 2 * both[1], ["x"], lambda x, y: {"x": [x, y]}),
    ],
)
def test_one_tensor_in_two_places_is_two_in_the_next_step(
    fn: Callable[..., Any], keys: list[str], batch_of: Callable[..., Any]
) -> None:
    network = TorchNetwork([LambdaOp(fn, keys, "z")], compile=QUICK)
    with network("infer", 1):
        for place in range(8):
            x = torch.full((2,), float(place))
            y = x if place < 4 else x + 1
            found = network.run_step(batch_of(x, y))["z"]
            assert torch.equal(found, x + 2 * y)
    assert captured(network) == 1


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_buffer_in_a_batch_is_another_tensor_in_the_next_step(mode: str) -> None:
    networks, models = [], []
    for compile in (QUICK, False):
        models.append(built(lambda: nn.BatchNorm1d(3)))
        ops = [
            ModelOp(models[-1], "x", "y"),
            LambdaOp(lambda y, z: y.sum() + z.sum(), ["y", "z"], "sum"),
        ]
        networks.append(TorchNetwork(ops, compile=compile))
    network, eager = networks
    with network(mode, 1), eager(mode, 1):
        for place in range(8):
            found, wanted = (
                one.run_step(
                    {
                        "x": torch.arange(6.0).reshape(2, 3) + place,
                        "z": model.running_mean if place < 4 else torch.full((3,), 5.0),
                    }
                )["sum"]
                for one, model in zip(networks, models, strict=True)
            )
            torch.testing.assert_close(found, wanted)


def test_nests_and_keys_that_ops_write_anew_or_delete() -> None:
    def double(nest: Any, x: torch.Tensor) -> Any:
        return {"deep": [nest["deep"][0] * 2]}, x + 1, x, x

    ops = [LambdaOp(double, ["nest", "x"], ["nest", "x", "same", "gone"]), Delete("gone")]
    network = TorchNetwork(ops, compile=QUICK)
    with network("infer", 1):
        for place in range(3):
            x = torch.full((2,), float(place))
            found = network.run_step({"x": x, "nest": {"deep": [x + 1]}, "name": "a"})
            assert found.keys() == {"x", "nest", "same", "name"}
            assert torch.equal(found["x"], x + 1)
            assert found["same"] is x
            assert torch.equal(found["nest"]["deep"][0], (x + 1) * 2)
    assert captured(network) == 1


def test_a_batch_on_another_device_runs_eagerly() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")], compile=QUICK)
    with falls_back(
        network, "the batch's 'x' is a tensor of torch.float32, torch.strided", "infer"
    ):
        for _ in range(3):
            network.run_step({"x": torch.ones(2, device="meta")})


def test_a_network_on_another_device_runs_eagerly() -> None:
    op = LambdaOp(lambda x: x + 1, "x", "y")
    network = TorchNetwork([op], compile=QUICK, device="meta", returns="device")
    reason = "the ops run on meta; steps are captured on the CPU and on CUDA only"
    with falls_back(network, reason, "infer"):
        network.run_step({"x": torch.ones(2)})


class _Counting(nn.Module):
    """Counts in buffers in the memory of numpy arrays, the last of which it returns."""

    def __init__(self, *buffers: Any) -> None:
        super().__init__()
        for index, buffer in enumerate(buffers):
            self.register_buffer(f"buffer{index}", torch.from_numpy(buffer))

    def forward(self, x: torch.Tensor) -> Any:
        *_, last = buffers = list(self.buffers())
        buffers[0].add_(1)
        return 2 * x, 2 * last


class _Adding(TensorOp):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__("y", "y")
        self.tensor = tensor

    def forward(self, data: Any, state: Any) -> Any:
        return data + self.tensor


def _assert_same_steps(
    make: Callable[[Any], list[Any]], batch_of: Callable[[torch.Tensor], torch.Tensor]
) -> TorchNetwork:
    """Compare steps on the memory of one array, compiled without verification, with eager ones."""
    found = []
    for compile in (False, CompileOptions(backend="eager", verify=None)):
        memory = np.arange(64.0, dtype=np.float32)
        network = TorchNetwork(make(memory), compile=compile)
        with network("infer", 1):
            for _ in range(4):
                result = network.run_step({"x": batch_of(torch.from_numpy(memory))})
                found.append((result["y"].tolist(), result["last"].tolist(), memory.tolist()))
    assert found[:4] == found[4:]
    return network


BATCHES_IN_BUFFER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": lambda memory: memory[:30:3],
    "step_over": lambda memory: memory[4:64:16],
    "as_strided": lambda memory: memory.as_strided((2, 5), (12, 2)),
    "transposed": lambda memory: memory[:40].view(10, 4).t()[:2],
    "expanded": lambda memory: memory[12:13].expand(10),
    "reversed": lambda memory: torch.from_numpy(memory.numpy()[40::-1].copy()),
    "before": lambda memory: memory[:10],
    "behind": lambda memory: memory[20::2],
    "empty": lambda memory: memory[15:15],
}


@pytest.mark.parametrize("name", BATCHES_IN_BUFFER)
def test_batch_in_memory_of_buffer(name: str) -> None:
    # The buffer has the elements 10 to 19.
    def make(memory: Any) -> list[Any]:
        return [ModelOp(built(lambda: _Counting(memory[10:20]), None), "x", ["y", "last"])]

    assert captured(_assert_same_steps(make, BATCHES_IN_BUFFER[name])) == 1


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize(
    ("first", "last"),
    [(slice(10, 20), slice(15, 25)), (slice(0, 60), slice(30, 32)), (slice(30, 32), slice(0, 60))],
)
def test_buffers_in_overlapping_memory_run_eagerly(first: slice, last: slice) -> None:
    def make(memory: Any) -> list[Any]:
        model = built(lambda: _Counting(memory[first], memory[last]), None)
        return [ModelOp(model, "x", ["y", "last"])]

    network = _assert_same_steps(make, lambda memory: torch.zeros(2))
    assert ["share memory" in reason for reason in fallbacks(network)] == [True]


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_held_tensor_in_memory_of_buffer_runs_eagerly() -> None:
    def make(memory: Any) -> list[Any]:
        model = built(lambda: _Counting(memory[10:20]), None)
        held = torch.from_numpy(memory[5:15])
        return [ModelOp(model, "x", ["y", "last"]), _Adding(held)]

    network = _assert_same_steps(make, lambda memory: torch.zeros(10))
    (reason,) = fallbacks(network)
    assert "shares memory with another tensor" in reason


def _double_in_nest(nest: Any, x: torch.Tensor) -> torch.Tensor:
    return nest["deep"][0] * 2 + nest["scale"] + x


@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize("arrays_from", [0, 2], ids=["arrays", "tensors-then-arrays"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_arrays_are_compiled_like_tensors(per_call: int, arrays_from: int, dtype: str) -> None:
    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built(lambda: nn.Linear(3, 3))
        ops = [
            LambdaOp(_double_in_nest, ["nest", "x"], "sum"),
            LambdaOp(lambda x: x.float() / 10, "sum", "float"),
            ModelOp(model, "float", "y"),
            LambdaOp(lambda y: (y**2).mean(), "y", "loss"),
            UpdateOp(model, "loss"),
        ]
        return model, TorchNetwork(ops, compile=compile)

    def batch(place: int, values: Any) -> dict[str, Any]:
        array = np.arange(6).reshape(2, 3).astype(dtype) + place
        if place < arrays_from:
            nest = {"deep": [torch.from_numpy(array)], "scale": torch.tensor(0.5)}
            return {"x": torch.from_numpy(array[::-1].copy()), "nest": nest, "name": "a"}
        return {"x": array[::-1], "nest": {"deep": [array], "scale": values(0.5)}, "name": "a"}

    (model, network), (eager_model, eager) = make(QUICK), make(False)
    for values in (np.float32, np.array):
        data = [batch(place, values) for place in range(6)]
        with network("train", 1), eager("train", 1):
            for start in range(0, 6, per_call):
                group = data[start : start + per_call]
                results = network.run_steps(group) if per_call > 1 else map(network.run_step, group)
                for result, one_batch in zip(results, group, strict=True):
                    expected = eager.run_step(one_batch)
                    assert list(result) == list(expected)
                    assert result["x"] is one_batch["x"]
                    assert result["nest"] is one_batch["nest"]
                    for key in ("sum", "float", "y", "loss"):
                        assert type(result[key]) is type(expected[key])
                        torch.testing.assert_close(result[key], expected[key])
    torch.testing.assert_close(model.weight, eager_model.weight)
    assert captured(network) >= 1
    assert fallbacks(network) == []


def test_array_that_an_op_writes_again_is_a_tensor() -> None:
    network = TorchNetwork(LambdaOp(lambda x: (x, x + 1), "x", ["same", "x"]), compile=QUICK)
    with network("infer", 1):
        for place in range(4):
            x = np.full(2, float(place), "float32")
            result = network.run_step({"x": x})
            assert isinstance(result["same"], torch.Tensor)
            assert torch.equal(result["same"], torch.full((2,), float(place)))
            assert torch.equal(result["x"], torch.full((2,), float(place) + 1))
            assert (x == place).all()
    assert captured(network) == 1


def test_array_is_not_written_to_as_in_eager_steps() -> None:
    arrays = []
    for compile in (QUICK, False):
        network = TorchNetwork(LambdaOp(lambda x: x.add_(1), "x", "y"), compile=compile)
        x = np.zeros(2, "float32")
        with network("infer", 1):
            for _ in range(4):
                network.run_step({"x": x})
        arrays.append(x)
    np.testing.assert_array_equal(arrays[1], [0, 0])
    np.testing.assert_array_equal(arrays[0], arrays[1])


@pytest.mark.parametrize("values", [["a", "b"], [None, {}]])
def test_array_of_objects_makes_steps_run_eagerly(values: list[Any]) -> None:
    op = LambdaOp(lambda x, names: x * len(names), ["x", "names"], "y")
    network = TorchNetwork(op, compile=QUICK)
    with falls_back(network, "'names' is, or holds, a value of type ndarray", "infer"):
        for _ in range(3):
            batch = {"x": np.ones(2, "float32"), "names": np.array(values)}
            assert torch.equal(network.run_step(batch)["y"], torch.full((2,), 2.0))


@pytest.mark.parametrize("dynamic", [None, {"x": (0, 1)}])
@pytest.mark.parametrize("starts_dense", [True, False])
def test_sparse_tensors_run_eagerly(dynamic: Any, starts_dense: bool) -> None:
    network = TorchNetwork(LambdaOp(lambda x: x * 2, "x", "y"), dynamic=dynamic, compile=QUICK)
    dense = torch.eye(3)
    with falls_back(network, "is a tensor of torch.float32, torch.sparse_coo", "infer"):
        for x in (*[dense] * 2 * starts_dense, dense.to_sparse(), dense.to_sparse_csr(), dense):
            result = network.run_step({"x": x})["y"]
            assert result.layout is x.layout
            assert torch.equal(result.to_dense(), dense * 2)


def test_layout_is_named_as_a_difference() -> None:
    network = TorchNetwork(
        LambdaOp(lambda x: x * 2, "x", "y"), compile=CompileOptions("eager", max_programs=1)
    )
    with network("infer", 1):
        for x in (torch.eye(3), torch.eye(3), torch.eye(3).to_sparse()):
            network.run_step({"x": x})
    assert "'x' has the layout torch.sparse_coo, not torch.strided" in fallbacks(network)[0]


@pytest.mark.parametrize("in_arrays", [True, False])
def test_programs_run_in_later_sessions_after_a_fallback(
    in_arrays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    run = TorchProgram.run

    def counted(self: TorchProgram, *args: Any) -> dict[str, Any]:
        runs.append(self)
        return run(self, *args)

    monkeypatch.setattr(TorchProgram, "run", counted)
    options = CompileOptions("eager", max_programs=1, verify=None)
    network = TorchNetwork(LambdaOp(lambda x: x * 2, "x", "y"), dynamic=False, compile=options)
    counts = []
    for sizes in ((3, 3, 4, 3), (3, 3, 3)):
        with network("infer", 1):
            for size in sizes:
                x: Any = np.ones(size, "float32")
                result = network.run_step({"x": x if in_arrays else torch.from_numpy(x)})["y"]
                assert torch.equal(result, torch.full((size,), 2.0))
        counts.append(len(runs))
    # The first step of each session and that of another size are eager.
    assert counts == [2, 4]


@pytest.mark.parametrize("batch", [(np.ones(2), np.ones(2)), [np.ones(2)], torch.ones(2), None, 3])
def test_no_batch_after_arrays(batch: Any) -> None:
    network = TorchNetwork(LambdaOp(lambda x: x * 2, "x", "y"), compile=QUICK)
    with network("infer", 1):
        network.run_steps([{"x": np.ones(2, "float32")}] * 3)
        for run in (network.run_step, lambda batch: network.run_steps([batch])):
            with pytest.raises(TypeError, match=f"takes a batch, .* got {type(batch).__name__}"):
                run(batch)
