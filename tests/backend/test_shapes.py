"""Choices among values, shapes, images and random tensors, against numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend.dispatch import backend_of
from tests.backend.makers import (
    FRAMEWORKS,
    WITH_GRADIENTS,
    gradient,
    in_graph,
    make,
    read,
    type_name,
)

X = np.random.default_rng(0).standard_normal((3, 4, 5))


@FRAMEWORKS
@pytest.mark.parametrize("indices", [[2, 0, 0, 1], [[2, 1], [0, 0]]])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_gather(framework: str, indices: Any, dtype: str) -> None:
    result = backend.gather(make(framework, X), make(framework, np.array(indices), dtype))
    np.testing.assert_array_equal(read(result), X[np.array(indices)])


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_gather_from_batch(framework: str, dtype: str, column: bool, count: int) -> None:
    places = np.array([3, 0, 2])[:count]
    given = make(framework, places[:, None] if column else places, dtype)
    for array in (X[:count], X[:count, :, 0]):
        result = backend.gather_from_batch(make(framework, array), given)
        np.testing.assert_array_equal(read(result), array[np.arange(count), places])


@WITH_GRADIENTS
def test_gradients_of_what_is_gathered(framework: str) -> None:
    found = gradient(framework, lambda x: backend.gather(x, np.array([1, 1, 2])), X[:, 0, 0])
    assert found.tolist() == [0, 2, 1]
    found = gradient(
        framework, lambda x: backend.gather_from_batch(x, np.array([1, 0])), X[:2, :2, 0]
    )
    assert found.tolist() == [[0, 1], [1, 0]]


@FRAMEWORKS
class TestWhere:
    condition = X > 0

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
    def test_value(self, framework: str, dtype: str) -> None:
        condition = make(framework, self.condition)
        yes, no = make(framework, 3 * X, dtype), make(framework, -3 * X, dtype)
        result = backend.where(condition, yes, no)
        np.testing.assert_array_equal(read(result), np.where(self.condition, read(yes), read(no)))
        assert type_name(result) == dtype

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
    @pytest.mark.parametrize("number", [2, 0.5, float("nan")])
    def test_numbers(self, framework: str, dtype: str, number: float) -> None:
        condition, tensor = make(framework, self.condition), make(framework, X, dtype)
        array = read(tensor).astype("float64")
        for pair, arrays in (
            ((tensor, number), (array, number)),
            ((number, tensor), (number, array)),
        ):
            result = backend.where(condition, *pair)
            np.testing.assert_array_equal(read(result), np.where(self.condition, *arrays))
            # The versions of numpy differ in what a number does to half precision.
            assert framework == "numpy" or type_name(result) == dtype

    def test_integers_and_a_fraction(self, framework: str) -> None:
        tensor = make(framework, np.array([3, 4]))
        condition = make(framework, np.array([True, False]))
        if framework == "tf":
            with pytest.raises(TypeError):
                backend.where(condition, tensor, 0.5)
        else:
            assert read(backend.where(condition, tensor, 0.5)).tolist() == [3, 0.5]


@WITH_GRADIENTS
def test_gradients_of_the_chosen(framework: str) -> None:
    array = np.array([-1.0, 2.0])
    assert gradient(framework, lambda x: backend.where(x > 0, 3 * x, 0.0), array).tolist() == [0, 3]
    assert gradient(framework, lambda x: backend.where(x > 0, 1, 5 * x), array).tolist() == [5, 0]


@FRAMEWORKS
def test_pad_ends(framework: str) -> None:
    tensor = make(framework, np.array([[1, 2]]))
    pad_ends = backend_of(tensor).pad_ends
    assert read(pad_ends(tensor, (1, 2), False, 7)).tolist() == [[1, 2, 7, 7], [7, 7, 7, 7]]
    assert read(pad_ends(tensor, (0, 1), True, 7)).tolist() == [[1, 2, 1]]
    assert pad_ends(tensor, (0, 0), True, 7) is tensor


@FRAMEWORKS
class TestImageDims:
    @pytest.mark.parametrize("batch", [(), (8,)])
    def test_value(self, framework: str, batch: tuple[int, ...]) -> None:
        size = (3, 28, 30) if framework == "torch" else (28, 30, 3)
        assert tuple(backend.get_image_dims(make(framework, np.ones(batch + size)))) == (3, 28, 30)

    @pytest.mark.parametrize("shape", [(3, 4), (1, 2, 3, 4, 5)])
    def test_no_image(self, framework: str, shape: tuple[int, ...]) -> None:
        with pytest.raises(AssertionError, match=re.escape(f"got the shape {shape}")):
            backend.get_image_dims(make(framework, np.ones(shape)))


@pytest.mark.tf
def test_get_shape_in_a_graph_of_any_batch_size() -> None:
    """As in FastEstimator, where it gives a tensor: good for reshaping."""

    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec((None, 4, 5), tf.float64)])
    def flatten(x: Any) -> Any:
        batch, *rest = backend.get_shape(x)
        assert rest == [4, 5]
        return tf.reshape(x, [batch * 4, 5]), tf.reshape(x, backend.get_shape(x))

    for size in (3, 1):
        flat, same = flatten(tf.constant(X[:size]))
        np.testing.assert_array_equal(flat, X[:size].reshape(-1, 5))
        np.testing.assert_array_equal(same, X[:size])


@FRAMEWORKS
@pytest.mark.parametrize("dtype", [None, "float16", "int64", "bool"])
def test_zeros_and_ones(framework: str, dtype: str | None) -> None:
    tensor = make(framework, X, "float32")
    for made, value in (
        (backend.zeros_like(tensor, dtype), 0),
        (backend.ones_like(tensor, dtype), 1),
    ):
        np.testing.assert_array_equal(read(made), np.full(X.shape, value))
        assert type_name(made) == (dtype or "float32")


@pytest.mark.tf
@pytest.mark.parametrize("pair", [(0.0, None), (None, 1), (2.0, 1)])
def test_where_in_a_graph(pair: tuple[Any, Any]) -> None:
    def call(x: Any) -> Any:
        yes, no = (x if each is None else each for each in pair)
        return backend.where(x > 0, yes, no)

    half = X.astype("float16")
    yes, no = (half if each is None else each for each in pair)
    np.testing.assert_array_equal(read(in_graph(call, half)), np.where(half > 0, yes, no))


FUNCTIONS = pytest.mark.parametrize(
    "function", [backend.random_normal_like, backend.random_uniform_like]
)


def seed(framework: str) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    if framework == "tf":
        pytest.importorskip("tensorflow").random.set_seed(1)


@FRAMEWORKS
@FUNCTIONS
class TestBoth:
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_types(self, framework: str, function: Callable[..., Any], dtype: str) -> None:
        assert type_name(function(make(framework, np.zeros(4)), dtype=dtype)) == dtype
        assert type_name(function(make(framework, np.zeros(4), dtype), dtype=None)) == dtype

    def test_seeds(self, framework: str, function: Callable[..., Any]) -> None:
        drawn = []
        for _ in range(2):
            seed(framework)
            drawn.append(read(function(make(framework, np.zeros(50)))))
        np.testing.assert_array_equal(*drawn)
        assert len(set(drawn[0].tolist())) > 40


@FRAMEWORKS
def test_normal(framework: str) -> None:
    seed(framework)
    drawn = read(backend.random_normal_like(make(framework, np.zeros(20000)), mean=3.0, std=0.5))
    assert drawn.mean() == pytest.approx(3, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, abs=0.02)
    # two thirds within one standard deviation
    assert (abs(drawn - 3) < 0.5).mean() == pytest.approx(0.683, abs=0.02)


IMAGES = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3))
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
VOLUMES = np.random.default_rng(1).standard_normal((2, 4, 6, 5, 3))


def laid_out(framework: str, array: Any) -> Any:
    """Put channels where the framework wants them."""
    return np.moveaxis(array, -1, 1) if framework == "torch" else array


def channels_last(framework: str, array: Any) -> Any:
    return np.moveaxis(array, 1, -1) if framework == "torch" else array


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
def test_normalize(framework: str, dtype: str) -> None:
    tensor = make(framework, laid_out(framework, IMAGES), dtype)
    before = read(tensor).copy()
    result = backend.normalize(tensor)
    expected = (IMAGES / 255 - MEAN) / STD
    np.testing.assert_allclose(channels_last(framework, read(result)), expected, atol=2e-6)
    assert type_name(result) == "float32"
    np.testing.assert_array_equal(read(tensor), before)


def area_oracle(array: Any, size: tuple[int, ...]) -> Any:
    """Average over the part of the old volume that each new position covers."""
    for axis, new in enumerate(size, start=1):
        old = array.shape[axis]
        # as many copies of each position as make the parts whole numbers of them
        fine = np.repeat(array, new, axis=axis)
        shape = [*fine.shape[:axis], new, old, *fine.shape[axis + 1 :]]
        array = fine.reshape(shape).mean(axis=axis + 1)
    return array


SIZES = [(2, 3, 5), (4, 6, 5), (3, 4, 2), (8, 12, 10), (5, 7, 6), (1, 1, 1)]


@FRAMEWORKS
class TestResize3D:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
    def test_nearest(self, framework: str, size: tuple[int, ...], dtype: str) -> None:
        tensor = make(framework, laid_out(framework, np.abs(9 * VOLUMES)), dtype)
        result = backend.resize_3d(tensor, size)
        expected = channels_last(framework, read(tensor))
        for axis, new in enumerate(size, start=1):
            # torch looks at where a new position begins, TensorFlow at its middle
            offset = 0 if framework == "torch" else 0.5
            places = ((np.arange(new) + offset) * expected.shape[axis] / new).astype(int)
            expected = np.take(expected, places, axis=axis)
        np.testing.assert_array_equal(channels_last(framework, read(result)), expected)
        assert type_name(result) == dtype

    @pytest.mark.parametrize("size", [(2, 3, 5), (1, 2, 1), (4, 6, 5), (8, 12, 10)])
    def test_area(self, framework: str, size: tuple[int, ...]) -> None:
        tensor = make(framework, laid_out(framework, VOLUMES), "float32")
        if framework == "numpy":
            with pytest.raises(ValueError, match="'nearest', but got 'area'"):
                backend.resize_3d(tensor, size, "area")
            return
        result = backend.resize_3d(tensor, size, "area")
        expected = area_oracle(VOLUMES, size)
        np.testing.assert_allclose(
            channels_last(framework, read(result)), expected, rtol=1e-5, atol=1e-6
        )
        assert type_name(result) == "float32"

    def test_another_mode(self, framework: str) -> None:
        with pytest.raises(AssertionError, match=r"resize_mode.*'nearest', 'area'.*'linear'"):
            backend.resize_3d(make(framework, VOLUMES), (2, 2, 2), "linear")


@pytest.mark.tf
@pytest.mark.parametrize("mode", ["nearest", "area"])
def test_graphs_of_any_size(mode: str) -> None:
    tf = pytest.importorskip("tensorflow")
    array = VOLUMES.astype("float32")
    expected = read(backend.resize_3d(make("tf", array), (3, 4, 2), mode))
    spec = tf.TensorSpec([None, None, None, 5, 3], tf.float32)
    graph = tf.function(
        lambda x: backend.resize_3d(x, (3, 4, 2), mode), input_signature=[spec], autograph=False
    )
    np.testing.assert_allclose(read(graph(array)), expected, rtol=1e-6)
