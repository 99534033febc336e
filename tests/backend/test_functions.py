"""Functions of elements, arrangements, reductions and percentiles, against numpy."""

from __future__ import annotations

import math
import re
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

X = np.random.default_rng(0).standard_normal((3, 4))
POSITIVE = np.abs(X) + 0.1
VOLUME = np.random.default_rng(0).standard_normal((3, 4, 5))
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}

# for each: what it does, what numpy does, and on what
Function = tuple[Callable[[Any], Any], Callable[[Any], Any], Any]
ELEMENTWISE: dict[str, Function] = {
    "abs": (backend.abs, np.abs, X),
    "exp": (backend.exp, np.exp, X),
    "sign": (backend.sign, np.sign, X),
    "tensor_round": (backend.tensor_round, np.round, 3 * X),
    "tensor_sqrt": (backend.tensor_sqrt, np.sqrt, POSITIVE),
    "pow": (lambda x: backend.pow(x, 1.5), lambda x: x**1.5, POSITIVE),
    "tensor_pow": (lambda x: backend.tensor_pow(x, 2), np.square, X),
    "clip": (lambda x: backend.clip_by_value(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), X),
    "at least": (
        lambda x: backend.clip_by_value(x, min_value=0.25),
        lambda x: np.maximum(x, 0.25),
        X,
    ),
    "at most": (
        lambda x: backend.clip_by_value(x, max_value=0.25),
        lambda x: np.minimum(x, 0.25),
        X,
    ),
}
ARRANGED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "concat": (lambda x: backend.concat([x, x], -1), lambda x: np.concatenate([x, x], -1)),
    "expand": (backend.expand_dims, lambda x: x[:, None]),
    "expand the end": (lambda x: backend.expand_dims(x, axis=-1), lambda x: x[..., None]),
    "squeeze": (lambda x: backend.squeeze(x[:, None, :, None]), lambda x: x),
    "squeeze an axis": (lambda x: backend.squeeze(x[:, None, None], -3), lambda x: x[:, None]),
    "flip an axis": (lambda x: backend.flip(x, 1), lambda x: np.flip(x, 1)),
    "flip axes": (lambda x: backend.flip(x, [0, -1]), lambda x: np.flip(x, (0, -1))),
    "flip a tuple": (lambda x: backend.flip(x, (2,)), lambda x: np.flip(x, 2)),
    "permute": (lambda x: backend.permute(x, [2, 0, 1]), lambda x: x.transpose(2, 0, 1)),
    "permute back": (lambda x: backend.permute(x, (-1, 0, -2)), lambda x: x.transpose(2, 0, 1)),
    "transpose": (backend.transpose, np.transpose),
    "reshape": (lambda x: backend.reshape(x, [5, -1]), lambda x: x.reshape(5, -1)),
    "reshape to a row": (lambda x: backend.reshape(x, -1), lambda x: x.reshape(-1)),
    "reshape to a tuple": (lambda x: backend.reshape(x, (-1, 20)), lambda x: x.reshape(3, 20)),
    "roll": (lambda x: backend.roll(x, 1, 0), lambda x: np.roll(x, 1, 0)),
    "roll back": (lambda x: backend.roll(x, -2, -1), lambda x: np.roll(x, -2, -1)),
    "roll axes": (lambda x: backend.roll(x, [1, 3], [0, 2]), lambda x: np.roll(x, (1, 3), (0, 2))),
}  # fmt: skip
ORACLES: dict[str, Callable[..., Any]] = {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_std": np.std,
    "reduce_max": np.max,
    "reduce_min": np.min,
}
AXES: list[tuple[Any, bool]] = [
    (None, False),
    (None, True),
    (-3, True),
    ([0, -1], False),
    ((2, 0), True),
]


def reduction(name: str, axis: Any, keepdims: bool) -> Function:
    axes = tuple(axis) if isinstance(axis, list) else axis
    return (
        lambda x: getattr(backend, name)(x, axis=axis, keepdims=keepdims),
        lambda x: ORACLES[name](x, axis=axes, keepdims=keepdims),
        VOLUME,
    )


REDUCED = {
    f"{name}-{axis}-{keepdims}": reduction(name, axis, keepdims)
    for name in ORACLES
    for axis, keepdims in AXES
}
FUNCTIONS = {
    **ELEMENTWISE,
    **{name: (*pair, VOLUME) for name, pair in ARRANGED.items()},
    **REDUCED,
}


@FRAMEWORKS
@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32", "bool"])
def test_values(framework: str, dtype: str) -> None:
    near = TOLERANCE.get(dtype, 0)
    for name, (function, oracle, array) in FUNCTIONS.items():
        if name not in ARRANGED and dtype not in TOLERANCE:
            continue
        tensor = make(framework, array, dtype)
        result = function(tensor)
        assert type_name(result) == dtype, name
        assert name in REDUCED or type(result) is type(tensor), name
        expected = oracle(read(tensor) if name in ARRANGED else read(tensor).astype("float64"))
        exact = 0 if name in ARRANGED else near
        np.testing.assert_allclose(read(result), expected, rtol=exact, atol=exact, err_msg=name)
        assert tuple(result.shape) == np.shape(expected), name


@WITH_GRADIENTS
@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("sign", "tensor_round")]
)
def test_gradients(framework: str, name: str) -> None:
    function, oracle, array = FUNCTIONS[name]
    shape = np.shape(oracle(array))
    weights = 1 + np.arange(float(np.prod(shape))).reshape(shape)
    found = gradient(framework, lambda x: function(x) * make(framework, weights), array)
    expected = slopes(lambda x: oracle(x) * weights, array)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.tf
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "reshape to a tuple"])
def test_graphs_of_any_batch_size(name: str) -> None:
    function, oracle, array = FUNCTIONS[name]
    np.testing.assert_allclose(read(in_graph(function, array)), oracle(array), rtol=1e-12)


def axes_of(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@FRAMEWORKS
@pytest.mark.parametrize("name", ORACLES)
def test_over_no_axes(framework: str, name: str) -> None:
    for axis in ([], ()):
        result = getattr(backend, name)(make(framework, VOLUME), axis=axis)
        np.testing.assert_allclose(read(result), ORACLES[name](VOLUME, axis=()), atol=1e-15)


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


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("axis", [None, (0, 1)])
def test_in_torch_the_first_of_equal_values_has_the_gradient(name: str, axis: Any) -> None:
    tensor = torch.zeros(2, 3, requires_grad=True)
    getattr(backend, name)(tensor, axis).backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [[1, 0, 0], [0, 0, 0]]


@FRAMEWORKS
class TestPercentile:
    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("axis", [None, -1, [0, 2], (2, 0)])
    @pytest.mark.parametrize("percentiles", [0, 37, 100, [50], (62.5, 12.5)])
    def test_value(self, framework: str, percentiles: Any, axis: Any, keepdims: bool) -> None:
        given = list(axis) if isinstance(axis, list) else axis
        result = backend.percentile(make(framework, VOLUME), percentiles, given, keepdims)
        assert given == axis
        expected = np.percentile(
            VOLUME, percentiles, axis=axes_of(axis), keepdims=keepdims, method="lower"
        )
        np.testing.assert_array_equal(read(result), expected)
        assert tuple(result.shape) == np.shape(expected)

    @pytest.mark.parametrize("size", [1, 10, 51, 101])
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

    @pytest.mark.parametrize("percentiles", [-1, [50, 100.5], math.nan])
    def test_outside(self, framework: str, percentiles: Any) -> None:
        with pytest.raises(ValueError, match=re.escape(f"0 to 100, but got {percentiles!r}.")):
            backend.percentile(make(framework, VOLUME), percentiles)


def test_torch_averages_the_last_axis_first() -> None:
    """In FastEstimator's order, bit for bit."""
    tensor = torch.rand(5, 6, 7)
    expected = tensor.mean(dim=2).mean(dim=0)
    assert torch.equal(backend.reduce_mean(tensor, axis=[0, 2]), expected)


@pytest.mark.tf
@pytest.mark.parametrize(("axis", "keepdims"), [(None, True), (0, False), ([0, 2], True)])
def test_percentiles_in_graphs_of_any_batch_size(axis: Any, keepdims: bool) -> None:
    result = in_graph(lambda x: backend.percentile(x, [0, 40, 100], axis, keepdims), VOLUME)
    expected = np.percentile(
        VOLUME, [0, 40, 100], axis=axes_of(axis), keepdims=keepdims, method="lower"
    )
    np.testing.assert_array_equal(read(result), expected)
