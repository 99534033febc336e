"""Conversions of whole batches, and of tensors into other types."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend import to_shape, to_tensor, to_type
from tests.backend.makers import FRAMEWORKS, make, read, type_name

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
        text = f"type {type(value).__name__} cannot be converted to a torch tensor.*to numbers"
        with pytest.raises(TypeError, match=text):
            to_tensor({"x": [value]}, "torch")

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


def test_to_shape() -> None:
    assert to_shape(DATA) == {"x": (10, 15), "y": [(4,), (5, 3)], "z": {"key": Pair((2, 2), ())}}
    assert to_shape(DATA, add_batch=True)["y"] == [[None, 4], [None, 5, 3]]
    assert to_shape(DATA, exact_shape=False)["y"] == [[None], [None, None]]


def test_to_type() -> None:
    assert to_type(DATA) == {
        "x": np.dtype("float32"),
        "y": [np.dtype("int8"), torch.float32],
        "z": {"key": Pair(torch.int64, np.dtype("int64"))},
    }


TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"]


@FRAMEWORKS
class TestByName:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("given", ["float16", "bfloat16", "float32", "int64", "bool"])
    def test_value(self, framework: str, given: str, dtype: str) -> None:
        if framework == "numpy" and dtype == "bfloat16":
            pytest.skip("numpy has no bfloat16")
        tensor = make(framework, np.array([[0.0, 1.0], [2.75, 100.0]]), given)
        result = backend.cast(tensor, dtype)
        assert type_name(result) == dtype
        expected = read(tensor).astype("float32" if dtype == "bfloat16" else dtype)
        np.testing.assert_array_equal(read(result), expected)

    @pytest.mark.parametrize("dtype", ["float33", "nn", 7])
    def test_no_type(self, framework: str, dtype: Any) -> None:
        name = {"torch": "torch", "tf": "TensorFlow", "numpy": "numpy"}[framework]
        if framework == "tf" and dtype == 7:
            pytest.skip("a number of TensorFlow's own")
        with pytest.raises(ValueError, match=f"{name} has no dtype named {dtype!r}.*'float32'"):
            backend.cast(make(framework, np.ones(2)), dtype)


@pytest.mark.tf
def test_tensorflows_own_types() -> None:
    tf = pytest.importorskip("tensorflow")
    assert backend.cast(tf.ones(2), tf.int8).dtype == tf.int8
    assert backend.cast(tf.Variable([1.5, 2.5]), "int64").numpy().tolist() == [1, 2]


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64"])
def test_cast_like_a_tensor(framework: str, dtype: str) -> None:
    reference = make(framework, np.zeros((2, 2)), dtype)
    for value, expected in (
        (make(framework, np.array([1.5, 2.0])), [1.5, 2]),
        ([1, 2], [1, 2]),
        ((3, 4), [3, 4]),
        (5, 5),
        (np.array([7.0]), [7]),
    ):
        result = backend.cast(value, reference)
        assert type(result) is type(reference)
        assert type_name(result) == dtype
        rounded = np.array(expected).astype("int64") if dtype == "int64" else expected
        assert read(result).tolist() == np.array(rounded).tolist()


@FRAMEWORKS
class TestPrecision:
    def test_single(self, framework: str) -> None:
        for dtype in ("float16", "float64", "int32"):
            tensor = make(framework, np.array([1, 2]), dtype)
            result = backend.convert_tensor_precision({"x": [tensor]})["x"][0]
            assert type_name(result) == "float32"
            assert read(result).tolist() == [1, 2]

    @pytest.mark.tf
    @pytest.mark.parametrize(
        ("policy", "dtype"),
        [("mixed_float16", "float16"), ("float16", "float16"), ("mixed_bfloat16", "float32")],
    )
    def test_under_a_policy(self, framework: str, policy: str, dtype: str) -> None:
        tf = pytest.importorskip("tensorflow")
        policies = tf.keras.mixed_precision
        before = policies.global_policy()
        policies.set_global_policy(policy)
        try:
            result = backend.convert_tensor_precision(make(framework, np.array([1.0])))
        finally:
            policies.set_global_policy(before)
        assert type_name(result) == dtype


def test_a_keras_that_is_not_imported_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("keras", "tf_keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert backend.convert_tensor_precision(torch.ones(2).double()).dtype is torch.float32
    assert not {"keras", "tf_keras"} & set(sys.modules)
