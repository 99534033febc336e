"""Operations on tensors and nests of tensors."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastnet.util import detach_tensors, get_batch_size, move_tensors_to_device, to_number

pytestmark = pytest.mark.fast


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    value: Any


def nest(leaf: Any) -> dict[str, Any]:
    return {"a": [leaf, 1], "b": Pair(leaf, "text"), "c": Record((leaf, None)), "d": {leaf}}


def leaves(data: dict[str, Any]) -> list[Any]:
    return [data["a"][0], data["b"].first, data["c"].value[0], *data["d"]]


class TestNests:
    torch = pytest.importorskip("torch")

    def test_detach(self) -> None:
        leaf = self.torch.ones(2, requires_grad=True) * 2
        data = nest(leaf)
        result = detach_tensors(data)
        for detached in leaves(result):
            assert not detached.requires_grad
            assert detached.data_ptr() == leaf.data_ptr()
        assert (result["a"][1], result["b"].second, result["c"].value[1]) == (1, "text", None)
        assert (type(result["b"]), type(result["c"])) == (Pair, Record)
        assert data["a"][0] is leaf

    @pytest.mark.parametrize("non_blocking", [False, True])
    @pytest.mark.parametrize("device", ["meta", torch.device("meta")])
    def test_move(self, device: Any, non_blocking: bool) -> None:
        leaf = self.torch.ones(2)
        result = move_tensors_to_device(nest(leaf), device, non_blocking=non_blocking)
        assert {moved.device.type for moved in leaves(result)} == {"meta"}
        assert leaf.device.type == "cpu"

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_move_to_the_same_device(self, device: str) -> None:
        """Tensors and immutable containers are not copied, mutable containers are."""
        torch = self.torch
        leaf = torch.ones(2, device=device, requires_grad=True)
        parameter = torch.nn.Parameter(torch.ones(2, device=device))
        data = [nest(leaf), Pair(parameter, 1), torch.empty(0, device=device)]
        result = move_tensors_to_device(data, device)
        assert all(moved is leaf for moved in leaves(result[0]))
        assert result[0]["b"] is data[0]["b"]
        assert result[1] is data[1]
        assert result[2] is data[2]
        for old, new in ((data[0], result[0]), (data[0]["a"], result[0]["a"])):
            assert new is not old
        assert result[0]["d"] is not data[0]["d"]

    def test_move_calls_the_method_of_a_subclass(self) -> None:
        class Own(self.torch.Tensor):  # type: ignore[name-defined,misc]
            def to(self, *args: Any, **kwargs: Any) -> Any:
                return args, kwargs

        leaf = self.torch.ones(2).as_subclass(Own)
        assert move_tensors_to_device([leaf], "cpu") == [(("cpu",), {"non_blocking": False})]

    def test_torch_is_not_imported(self) -> None:
        code = (
            "import sys; from fastnet.util import *; data = {'a': [1]}; "
            "assert detach_tensors(data) == data == move_tensors_to_device(data, 'cpu'); "
            "assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def test_batch_size() -> None:
    data = {"x": np.ones((8, 3)), "y": np.ones(8), "scalar": np.array(1.0), "names": ["a"]}
    assert get_batch_size(data) == 8


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([1], "a dict of keys to tensors, but got list"),
        ({"y": 1, "x": np.array(2)}, r"none of its keys \['x', 'y'\]"),
        ({"x": np.ones((8, 3)), "y": np.ones(4)}, "differ: {'x': 8, 'y': 4}"),
    ],
)
def test_batches_without_a_size(data: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        get_batch_size(data)


class TestToNumber:
    torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("data", [5, 4.0, True, [1, 2], "text", np.arange(3)])
    def test_plain_values(self, data: Any) -> None:
        result = to_number(data)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, np.array(data))

    @pytest.mark.parametrize("data", [np.zeros(2), torch.zeros(2)], ids=["numpy", "torch"])
    def test_the_memory_is_not_shared(self, data: Any) -> None:
        to_number(data)[0] = 1
        assert data[0] == 0

    def test_a_tensor_with_a_graph(self) -> None:
        result = to_number(self.torch.tensor([1.0, 2.0], requires_grad=True) * 2)
        np.testing.assert_array_equal(result, np.array([2.0, 4.0], dtype="float32"))
        assert result.dtype == np.float32

    def test_bfloat16_becomes_float32(self) -> None:
        result = to_number(self.torch.tensor([1.5, -0.125], dtype=self.torch.bfloat16))
        assert result.dtype == np.float32
        assert result.tolist() == [1.5, -0.125]
