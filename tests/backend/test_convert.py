"""Conversions of whole batches."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.backend import to_shape, to_tensor, to_type

Pair = namedtuple("Pair", ["first", "second"])


class TestToTorch:
    def test_arrays_are_copied(self) -> None:
        array = np.zeros(2)
        to_tensor(array, "torch")[0] = 1
        assert array[0] == 0

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (1, torch.int64),
            (1.0, torch.float64),
            (True, torch.bool),
            (1j, torch.complex128),
            (np.float32(1), torch.float32),
        ],
    )
    def test_numbers(self, value: Any, dtype: torch.dtype) -> None:
        result = to_tensor(value, "torch")
        assert result.dtype == dtype
        assert result.shape == ()

    def test_strings_and_none_stay(self) -> None:
        names = np.array(["a", "b"])
        data = ["a", None, b"b", names]
        result = to_tensor(data, "torch")
        assert result[:3] == ["a", None, b"b"]
        assert result[3].tolist() == ["a", "b"]

    @pytest.mark.parametrize("value", [object(), np.array([None]), SimpleNamespace()])
    def test_objects(self, value: Any) -> None:
        with pytest.raises(TypeError) as caught:
            to_tensor({"x": [value]}, "torch")
        assert str(caught.value) == (
            f"A value of type {type(value).__name__} cannot be converted to a torch tensor, "
            "because numpy makes an array of Python objects of it. Convert it to numbers first."
        )

    def test_shared_memory(self) -> None:
        kept = torch.ones(2)
        result = to_tensor({"x": [np.ones(2), kept]}, "torch", shared_memory=True)
        assert result["x"][0].is_shared()
        assert result["x"][1] is kept
        assert kept.is_shared()
        assert not to_tensor(np.ones(2), "torch").is_shared()


class TestToNumpy:
    def test_values(self) -> None:
        kept = np.ones(2)
        graph = torch.ones(2, requires_grad=True) * 2
        data = [kept, graph, torch.ones(1, dtype=torch.bfloat16), 5, "a", None]
        result = to_tensor(data, target_type="np")
        assert result[0] is kept
        assert result[1].tolist() == [2, 2]
        assert result[2].dtype == np.float32
        assert result[3] == np.array(5)
        assert result[4:] == ["a", None]

    def test_tensors_are_copied(self) -> None:
        tensor = torch.zeros(2)
        to_tensor(tensor, "np")[0] = 1
        assert tensor[0] == 0


DATA = {
    "x": np.ones((10, 15), dtype="float32"),
    "y": [np.ones(4, dtype="int8"), torch.ones(5, 3)],
    "z": {"key": Pair(torch.ones(2, 2, dtype=torch.int64), 7)},
}


class TestToShape:
    def test_exact(self) -> None:
        assert to_shape(DATA) == {
            "x": (10, 15),
            "y": [(4,), (5, 3)],
            "z": {"key": Pair((2, 2), ())},
        }

    def test_with_batch(self) -> None:
        assert to_shape(DATA, add_batch=True)["y"] == [[None, 4], [None, 5, 3]]

    def test_inexact(self) -> None:
        assert to_shape(DATA, exact_shape=False)["y"] == [[None], [None, None]]


class TestToType:
    def test_types(self) -> None:
        assert to_type(DATA) == {
            "x": np.dtype("float32"),
            "y": [np.dtype("int8"), torch.float32],
            "z": {"key": Pair(torch.int64, np.dtype("int64"))},
        }
