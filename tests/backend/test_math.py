"""Functions with edges of their own, such as NaN and infinity, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fastnet import backend
from tests.backend.makers import (
    FRAMEWORKS,
    WITH_GRADIENTS,
    gradient,
    make,
    read,
    type_name,
)

X = np.random.default_rng(0).standard_normal((3, 4))
FLOATS = ["float16", "bfloat16", "float32", "float64"]
EXACT = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14}


class TestClipping:
    @FRAMEWORKS
    def test_to_nothing(self, framework: str) -> None:
        with pytest.raises(AssertionError, match="min_value"):
            backend.clip_by_value(make(framework, X))

    def test_bounds_in_torch(self) -> None:
        """They get no gradients, as numbers get none, and ints are clipped to fractions."""
        bound = torch.tensor(2.5, requires_grad=True)
        assert not backend.clip_by_value(torch.ones(2), min_value=bound).requires_grad
        for low in (2.5, torch.tensor(2.5)):
            result = backend.clip_by_value(torch.tensor([1, 5]), min_value=low, max_value=10)
            assert result.tolist() == [2.5, 5.0]
            assert result.dtype is torch.float32


@FRAMEWORKS
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8"])
@pytest.mark.parametrize("axis", [0, -1])
def test_argmax(framework: str, dtype: str, axis: int) -> None:
    # many equal values
    tensor = make(framework, np.random.default_rng(3).integers(0, 3, (5, 7)), dtype)
    result = backend.argmax(tensor, axis=axis)
    np.testing.assert_array_equal(read(result), read(tensor).argmax(axis=axis))
    assert type_name(result) == "int64"


@FRAMEWORKS
class TestCheckNan:
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_found(self, framework: str, dtype: str) -> None:
        for value in (math.nan, math.inf, -math.inf):
            assert bool(backend.check_nan(make(framework, np.array([[1.0, value]]), dtype)))
        assert bool(backend.check_nan(make(framework, np.array([1j, math.nan]), "complex128")))

    @pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
    def test_not_found(self, framework: str, dtype: str) -> None:
        assert not bool(backend.check_nan(make(framework, np.array([1.0, 0.0]), dtype)))


def w_of(z: float) -> float:
    """Solve w * exp(w) = z by halving an interval."""
    low, high = -1.0, max(1.0, math.log1p(max(z, 0.0)))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.exp(middle) < z else (low, middle)
    return low


@FRAMEWORKS
class TestLambertW:
    z = np.concatenate([np.linspace(-0.36, 1, 60), np.logspace(0, 30, 60)])
    w = np.array([w_of(each) for each in z])

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_value(self, framework: str, dtype: str) -> None:
        inside = self.z < (6e4 if dtype == "float16" else math.inf)
        tensor = make(framework, self.z[inside], dtype)
        expected = np.array([w_of(each) for each in read(tensor).astype("float64")])
        result = backend.lambertw(tensor)
        assert type_name(result) == dtype
        tolerance = {**EXACT, "float32": 2e-6, "float64": 1e-13}[dtype]
        np.testing.assert_allclose(read(result), expected, rtol=tolerance, atol=1e-12)

    def test_edges(self, framework: str) -> None:
        z = np.array([-1 / math.e, 0.0, -0.0, math.inf, -0.5, -math.inf, math.nan])
        expected = [-1.0, 0.0, 0.0, math.inf, math.nan, math.nan, math.nan]
        for dtype in ("float32", "float64"):
            result = backend.lambertw(make(framework, z.astype(dtype)))
            np.testing.assert_allclose(read(result), expected, atol=1e-3)

    def test_integers(self, framework: str) -> None:
        if framework != "tf":  # which has no functions of integers
            found = backend.lambertw(make(framework, np.array([0, 1])))
            np.testing.assert_allclose(read(found), [0, 0.5671433], rtol=1e-6)


@WITH_GRADIENTS
def test_gradients_of_lambertw(framework: str) -> None:
    z = np.array([-0.35, -0.1, 0.0, 0.5, 3.0, 1e3])
    w = np.array([w_of(each) for each in z])
    found = gradient(framework, backend.lambertw, z)
    np.testing.assert_allclose(found, 1 / (np.exp(w) * (1 + w)), rtol=1e-9)


@FRAMEWORKS
class TestPairs:
    def test_matmul_of_batches(self, framework: str) -> None:
        rng = np.random.default_rng(1)
        a, b = rng.standard_normal((5, 3, 4)), rng.standard_normal((5, 4, 2))
        result = backend.matmul(make(framework, a), make(framework, b))
        np.testing.assert_allclose(read(result), a @ b, rtol=1e-12)

    @pytest.mark.parametrize("name", ["matmul", "maximum"])
    def test_two_frameworks(self, framework: str, name: str) -> None:
        other = make("numpy" if framework == "torch" else "torch", X)
        own = make(framework, X)
        types = f"do not match: {type(own).__name__} and {type(other).__name__}.*to_tensor"
        with pytest.raises(ValueError, match=types):
            getattr(backend, name)(own, other)


@FRAMEWORKS
class TestInverseDistanceWeights:
    @pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
    @pytest.mark.parametrize("apart", [1.0, 8.0])
    def test_a_class_that_is_met(self, framework: str, power: float, apart: float) -> None:
        distances = make(framework, np.array([[0.0, apart, apart]]))
        result = backend.iwd(distances, power=power, max_prob=0.9, pairwise_distance=apart)
        np.testing.assert_allclose(read(result), [[0.9, 0.05, 0.05]])

    def test_the_least_distance(self, framework: str) -> None:
        distances = make(framework, np.array([[0.0, 3.0]]), "float32")
        for eps in (make(framework, np.array(1.0)), 1.0):
            result = backend.iwd(distances, eps=eps)
            np.testing.assert_allclose(read(result), [[0.75, 0.25]])
            assert type_name(result) == "float32"


@FRAMEWORKS
def test_epsilon_of_zscore(framework: str) -> None:
    result = backend.zscore(make(framework, np.array([1.0, 3.0])), epsilon=4.0)
    assert read(result).tolist() == [-0.25, 0.25]
