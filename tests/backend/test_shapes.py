"""Shapes and arrangements, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
from tests.network.programs import raising

X = np.random.default_rng(0).standard_normal((3, 4, 5))

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


@FRAMEWORKS
@pytest.mark.parametrize("name", ARRANGED)
class TestArranging:
    @pytest.mark.parametrize(
        "dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"]
    )
    def test_value(self, framework: str, name: str, dtype: str) -> None:
        function, oracle = ARRANGED[name]
        tensor = make(framework, 3 * X, dtype)
        result = function(tensor)
        np.testing.assert_array_equal(read(result), oracle(read(tensor)))
        assert type_name(result) == dtype
        assert type(result) is type(tensor)


@WITH_GRADIENTS
@pytest.mark.parametrize("name", ARRANGED)
def test_gradients_go_back_to_where_they_belong(framework: str, name: str) -> None:
    function, oracle = ARRANGED[name]
    weights = np.arange(float(oracle(X).size)).reshape(oracle(X).shape)
    found = gradient(framework, lambda x: function(x) * make(framework, weights), X)
    expected = np.zeros(60)
    np.add.at(expected, oracle(np.arange(60).reshape(X.shape)).reshape(-1), weights.reshape(-1))
    np.testing.assert_array_equal(found, expected.reshape(X.shape))


@pytest.mark.tf
@pytest.mark.parametrize("name", [name for name in ARRANGED if name != "reshape to a tuple"])
def test_graphs_of_any_batch_size(name: str) -> None:
    function, oracle = ARRANGED[name]
    np.testing.assert_array_equal(read(in_graph(function, X)), oracle(X))


@FRAMEWORKS
class TestGather:
    @pytest.mark.parametrize("indices", [[2, 0, 0, 1], [[2, 1], [0, 0]]])
    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32"])
    def test_value(self, framework: str, indices: Any, dtype: str) -> None:
        result = backend.gather(make(framework, X), make(framework, np.array(indices), dtype))
        np.testing.assert_array_equal(read(result), X[np.array(indices)])


@FRAMEWORKS
class TestGatherFromBatch:
    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
    @pytest.mark.parametrize("column", [False, True])
    @pytest.mark.parametrize("count", [1, 3])
    def test_value(self, framework: str, dtype: str, column: bool, count: int) -> None:
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

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
    def test_value(self, framework: str, dtype: str) -> None:
        condition = make(framework, self.condition)
        yes, no = make(framework, 3 * X, dtype), make(framework, -3 * X, dtype)
        result = backend.where(condition, yes, no)
        np.testing.assert_array_equal(read(result), np.where(self.condition, read(yes), read(no)))
        assert type_name(result) == dtype

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    @pytest.mark.parametrize("number", [0, 2, 0.5, float("nan")])
    def test_numbers(self, framework: str, dtype: str, number: float) -> None:
        condition, tensor = make(framework, self.condition), make(framework, X, dtype)
        expected = np.where(self.condition, read(tensor).astype("float64"), number)
        result = backend.where(condition, tensor, number)
        np.testing.assert_array_equal(read(result), expected)
        expected = np.where(self.condition, number, read(tensor).astype("float64"))
        other = backend.where(condition, number, tensor)
        np.testing.assert_array_equal(read(other), expected)
        if framework != "numpy":  # whose versions differ in what a number does to half precision
            assert type_name(result) == type_name(other) == dtype

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
        text = f"An image has three axes, a batch of them four, but got the shape {shape}."
        with raising(AssertionError, text):
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
@pytest.mark.parametrize("dtype", [None, "float16", "float32", "float64", "int64", "bool"])
def test_zeros_and_ones(framework: str, dtype: str | None) -> None:
    tensor = make(framework, X, "float32")
    for made, value in (
        (backend.zeros_like(tensor, dtype), 0),
        (backend.ones_like(tensor, dtype), 1),
    ):
        np.testing.assert_array_equal(read(made), np.full(X.shape, value))
        assert type_name(made) == (dtype or "float32")


@pytest.mark.tf
@pytest.mark.parametrize("pair", [(0.0, None), (None, 0.0), (1, None), (2.0, 1)])
def test_where_in_a_graph(pair: tuple[Any, Any]) -> None:
    def call(x: Any) -> Any:
        yes, no = (x if each is None else each for each in pair)
        return backend.where(x > 0, yes, no)

    half = X.astype("float16")
    yes, no = (half if each is None else each for each in pair)
    np.testing.assert_array_equal(read(in_graph(call, half)), np.where(half > 0, yes, no))
