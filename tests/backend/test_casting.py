"""Tensors in another type, alone and in nests."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from tests.backend.makers import FRAMEWORKS, make, read, type_name
from tests.network.programs import raising

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
        with raising(ValueError, f"{name} has no dtype named {dtype!r}. Try 'float32' or 'int64'."):
            backend.cast(make(framework, np.ones(2)), dtype)


@pytest.mark.tf
def test_tensorflows_own_types() -> None:
    tf = pytest.importorskip("tensorflow")
    assert backend.cast(tf.ones(2), tf.int8).dtype == tf.int8
    assert backend.cast(tf.Variable([1.5, 2.5]), "int64").numpy().tolist() == [1, 2]


@FRAMEWORKS
class TestLikeATensor:
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64"])
    def test_value(self, framework: str, dtype: str) -> None:
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
