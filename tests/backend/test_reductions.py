"""Reductions over axes, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from tests.backend.makers import (
    FRAMEWORKS,
    WITH_GRADIENTS,
    gradient,
    in_graph,
    make,
    read,
    slopes,
    type_name,
)
from tests.network.programs import raising

X = np.random.default_rng(0).standard_normal((2, 3, 4))
ORACLES: dict[str, Callable[..., Any]] = {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_std": np.std,
    "reduce_max": np.max,
    "reduce_min": np.min,
}
NAMES = pytest.mark.parametrize("name", ORACLES)
AXES = [None, 0, 2, -1, -3, [0, 2], (2, 0), [1, -1], (-1, -2), [0, 1, 2], (1,)]
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def axes_of(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@FRAMEWORKS
@NAMES
class TestReductions:
    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("axis", AXES)
    def test_value(self, framework: str, name: str, axis: Any, keepdims: bool) -> None:
        tensor = make(framework, X)
        result = getattr(backend, name)(tensor, axis=axis, keepdims=keepdims)
        expected = ORACLES[name](X, axis=axes_of(axis), keepdims=keepdims)
        np.testing.assert_allclose(read(result), expected, rtol=1e-12)
        assert tuple(result.shape) == np.shape(expected)

    @pytest.mark.parametrize("dtype", TOLERANCE)
    def test_types(self, framework: str, name: str, dtype: str) -> None:
        tensor = make(framework, X, dtype)
        for axis in (None, [0, 1]):
            result = getattr(backend, name)(tensor, axis)
            expected = ORACLES[name](read(tensor).astype("float64"), axis=axes_of(axis))
            np.testing.assert_allclose(
                read(result), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )
            assert type_name(result) == dtype

    @pytest.mark.parametrize("axis", [[], ()])
    def test_over_no_axes(self, framework: str, name: str, axis: Any) -> None:
        result = getattr(backend, name)(make(framework, X), axis=axis)
        np.testing.assert_allclose(read(result), ORACLES[name](X, axis=()), atol=1e-15)


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_ints(framework: str, dtype: str) -> None:
    array = np.random.default_rng(1).integers(0, 9, (3, 4))
    tensor = make(framework, array, dtype)
    for name in ("reduce_max", "reduce_min", "reduce_sum"):
        for axis in (None, 0, [0, 1], -1):
            result = getattr(backend, name)(tensor, axis)
            np.testing.assert_array_equal(read(result), ORACLES[name](array, axis=axes_of(axis)))
    assert type_name(backend.reduce_max(tensor)) == dtype
    kept = "int64" if framework == "torch" else dtype
    if framework != "numpy":
        assert type_name(backend.reduce_sum(tensor, 0)) == kept
    if framework == "torch":
        assert backend.reduce_sum(tensor, []).dtype is torch.int64


@WITH_GRADIENTS
@NAMES
@pytest.mark.parametrize("axis", [None, 1, (0, -1)])
def test_gradients(framework: str, name: str, axis: Any) -> None:
    found = gradient(framework, lambda x: getattr(backend, name)(x, axis), X)
    expected = slopes(lambda x: ORACLES[name](x, axis=axis), X)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("axis", [None, (0, 1)])
def test_in_torch_the_first_of_equal_values_has_the_gradient(name: str, axis: Any) -> None:
    tensor = torch.zeros(2, 3, requires_grad=True)
    getattr(backend, name)(tensor, axis).backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.tf
@NAMES
@pytest.mark.parametrize("axis", [None, 0, (0, -1)])
def test_graphs_of_any_batch_size(name: str, axis: Any) -> None:
    result = in_graph(lambda x: getattr(backend, name)(x, axis), X)
    np.testing.assert_allclose(read(result), ORACLES[name](X, axis=axis))


@FRAMEWORKS
class TestPercentile:
    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("axis", AXES)
    @pytest.mark.parametrize("percentiles", [0, 37, 62.5, 100, [50], [0, 12.5, 100], (99, 1)])
    def test_value(self, framework: str, percentiles: Any, axis: Any, keepdims: bool) -> None:
        given = list(axis) if isinstance(axis, list) else axis
        result = backend.percentile(make(framework, X), percentiles, given, keepdims)
        assert given == axis
        expected = np.percentile(
            X, percentiles, axis=axes_of(axis), keepdims=keepdims, method="lower"
        )
        np.testing.assert_array_equal(read(result), expected)
        assert tuple(result.shape) == np.shape(expected)

    @pytest.mark.parametrize("size", [1, 2, 10, 11, 51, 101])
    def test_every_whole_percentile(self, framework: str, size: int) -> None:
        array = np.random.default_rng(size).permutation(size).astype("float64")
        found = read(backend.percentile(make(framework, array), list(range(101)), keepdims=False))
        # a percentile of 29 out of 101 is rounded down, and all frameworks agree on it
        assert found.tolist() == [math.floor(each / 100 * (size - 1)) for each in range(101)]

    @pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64"])
    def test_types(self, framework: str, dtype: str) -> None:
        result = backend.percentile(make(framework, np.array([3, 1, 2]), dtype), 50)
        assert read(result).tolist() == [2]
        assert type_name(result) == dtype

    def test_nan(self, framework: str) -> None:
        found = backend.percentile(
            make(framework, np.array([[1.0, 2.0], [1.0, math.nan]])), 50, axis=1, keepdims=False
        )
        np.testing.assert_array_equal(read(found), [1, math.nan])

    @pytest.mark.parametrize("percentiles", [-1, 100.5, [50, 101], math.nan])
    def test_outside(self, framework: str, percentiles: Any) -> None:
        text = f"A percentile is a number from 0 to 100, but got {percentiles!r}."
        with raising(ValueError, text):
            backend.percentile(make(framework, X), percentiles)


def test_torch_averages_the_last_axis_first() -> None:
    """In FastEstimator's order, bit for bit."""
    tensor = torch.rand(5, 6, 7)
    expected = tensor.mean(dim=2).mean(dim=0)
    assert torch.equal(backend.reduce_mean(tensor, axis=[0, 2]), expected)


@pytest.mark.tf
@pytest.mark.parametrize("axis", [None, 0, 1, [0, 2], [1, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_percentiles_in_graphs_of_any_batch_size(axis: Any, keepdims: bool) -> None:
    result = in_graph(lambda x: backend.percentile(x, [0, 40, 100], axis, keepdims), X)
    expected = np.percentile(X, [0, 40, 100], axis=axes_of(axis), keepdims=keepdims, method="lower")
    np.testing.assert_array_equal(read(result), expected)
