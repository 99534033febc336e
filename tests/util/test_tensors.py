"""Detaching, moving, counting and converting tensors."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastnet.util import detach_tensors, get_batch_size, move_tensors_to_device, to_number


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    value: Any


class TestNests:
    torch = pytest.importorskip("torch")

    def nest(self, leaf: Any) -> dict[str, Any]:
        return {"a": [leaf, 1], "b": Pair(leaf, "text"), "c": Record((leaf, None)), "d": {leaf}}

    def test_detach(self) -> None:
        leaf = self.torch.ones(2, requires_grad=True) * 2
        data = self.nest(leaf)
        result = detach_tensors(data)
        leaves = [result["a"][0], result["b"].first, result["c"].value[0], *result["d"]]
        for detached in leaves:
            assert not detached.requires_grad
            assert detached.data_ptr() == leaf.data_ptr()
        assert (result["a"][1], result["b"].second, result["c"].value[1]) == (1, "text", None)
        assert type(result["b"]) is Pair
        assert type(result["c"]) is Record
        assert data["a"][0] is leaf

    def test_detach_of_one_value(self) -> None:
        leaf = self.torch.ones(2, requires_grad=True)
        assert not detach_tensors(leaf).requires_grad
        assert detach_tensors("text") == "text"
        assert detach_tensors(None) is None

    @pytest.mark.parametrize("non_blocking", [False, True])
    def test_move(self, non_blocking: bool) -> None:
        leaf = self.torch.ones(2)
        result = move_tensors_to_device(self.nest(leaf), "meta", non_blocking=non_blocking)
        leaves = [result["a"][0], result["b"].first, result["c"].value[0], *result["d"]]
        assert {moved.device.type for moved in leaves} == {"meta"}
        assert leaf.device.type == "cpu"

    def test_move_takes_a_device_too(self) -> None:
        moved = move_tensors_to_device([self.torch.ones(2)], self.torch.device("meta"))
        assert moved[0].device.type == "meta"

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_move_of_what_is_there(self, device: str) -> None:
        """Tensors are themselves, and so is what cannot be written to; the rest is new."""
        torch = self.torch
        leaf = torch.ones(2, device=device, requires_grad=True)
        parameter = torch.nn.Parameter(torch.ones(2, device=device))
        data = [self.nest(leaf), Pair(parameter, 1), torch.empty(0, device=device)]
        result = move_tensors_to_device(data, device)
        assert result[0]["a"][0] is result[0]["b"].first is next(iter(result[0]["d"])) is leaf
        assert leaf.requires_grad
        assert result[0]["b"] is data[0]["b"]
        assert result[1] is data[1]
        assert result[2] is data[2]
        assert result[0] is not data[0]
        assert result[0]["a"] is not data[0]["a"]
        assert result[0]["d"] is not data[0]["d"]
        result[0]["a"].append(2)
        assert len(data[0]["a"]) == 2

    def test_move_from_several_devices(self) -> None:
        """Each tensor goes where `to` takes it, whether it was there or not."""
        torch = self.torch
        data = {
            device: [torch.ones(2, device=device), (torch.zeros(1, device=device), None)]
            for device in ("cpu", "meta")
        }
        for target in ("meta", torch.device("meta"), torch.device("meta", 0)):
            result = move_tensors_to_device(data, target)
            for one, (first, (second, none)) in result.items():
                old = data[one]
                assert first.device == old[0].to(target).device
                assert (first is old[0]) == (old[0].to(target) is old[0])
                assert (second.shape, second.device.type, none) == ((1,), "meta", None)
        with pytest.raises(NotImplementedError, match="meta"):
            move_tensors_to_device(data, "cpu")

    def test_move_of_a_derived_class_is_its_own(self) -> None:
        torch = self.torch

        class Staying(torch.Tensor):  # type: ignore[name-defined,misc]
            def to(self, *args: Any, **kwargs: Any) -> Any:
                return "asked", args, kwargs

        leaf = torch.ones(2).as_subclass(Staying)
        assert move_tensors_to_device([leaf], "cpu") == [
            ("asked", ("cpu",), {"non_blocking": False})
        ]

    def test_move_leaves_other_things(self) -> None:
        still = [None, 1, "text", np.ones(2), {1, "a"}, frozenset({2}), Pair(0, ())]
        result = move_tensors_to_device(still, "cpu")
        assert all(
            one is other or (one == other and isinstance(one, set))
            for one, other in zip(result, still, strict=True)
        )

    def test_move_to_no_device(self) -> None:
        with pytest.raises(RuntimeError, match="nowhere"):
            move_tensors_to_device([self.torch.ones(2)], "nowhere")

    def test_without_torch_nothing_is_a_tensor(self) -> None:
        code = (
            "import sys; from fastnet.util import *; data = {'a': [1]}; "
            "assert detach_tensors(data) == data == move_tensors_to_device(data, 'cpu'); "
            "assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestGetBatchSize:
    def test_size(self) -> None:
        data = {"x": np.ones((8, 3)), "y": np.ones(8), "scalar": np.array(1.0), "names": ["a"]}
        assert get_batch_size(data) == 8

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ([1], "The batch size is read off a dict of keys to tensors, but got list."),
            (
                {"y": 1, "x": np.array(2)},
                "The batch has no size: none of its keys ['x', 'y'] holds a tensor with an axis.",
            ),
            (
                {"x": np.ones((8, 3)), "y": np.ones(4)},
                "The batch has no single size, because the first axes of its tensors differ: "
                "{'x': 8, 'y': 4}.",
            ),
        ],
    )
    def test_errors(self, data: Any, text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            get_batch_size(data)
        assert str(caught.value) == text


class TestToNumber:
    @pytest.mark.parametrize("data", [5, 4.0, True, [1, 2], "text", np.arange(3)])
    def test_plain(self, data: Any) -> None:
        result = to_number(data)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, np.array(data))

    def test_arrays_are_copied(self) -> None:
        data = np.zeros(2)
        to_number(data)[0] = 1
        assert data[0] == 0


class TestToNumberOfTorch:
    torch = pytest.importorskip("torch")

    def test_tensor_in_a_graph(self) -> None:
        tensor = self.torch.tensor([1.0, 2.0], requires_grad=True)
        result = to_number(tensor * 2)
        np.testing.assert_array_equal(result, np.array([2.0, 4.0], dtype="float32"))
        assert result.dtype == np.float32

    def test_tensors_are_copied(self) -> None:
        tensor = self.torch.zeros(2)
        to_number(tensor)[0] = 1
        assert tensor[0] == 0

    def test_bfloat16_becomes_float32(self) -> None:
        result = to_number(self.torch.tensor([1.5, -0.125], dtype=self.torch.bfloat16))
        assert result.dtype == np.float32
        assert result.tolist() == [1.5, -0.125]

    def test_lazy_conjugate_and_negation(self) -> None:
        tensor = self.torch.tensor([1 + 2j]).conj()
        assert to_number(tensor).tolist() == [1 - 2j]
        assert to_number(tensor.imag).tolist() == [-2.0]
