"""TensorFlow's ops called directly: to the bit what TensorFlow's own functions give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.backend.tf import direct

pytestmark = pytest.mark.tf

FLOATS = ("float16", "bfloat16", "float32", "float64")
ONE = {
    "abs": tf.abs,
    "exp": tf.exp,
    "rest_of": lambda x: 1.0 - x,
    "sigmoid": tf.sigmoid,
    "sign": tf.sign,
    "sqrt": tf.sqrt,
}
TWO = {
    "add": tf.add,
    "divide_no_nan": tf.math.divide_no_nan,
    "equal": tf.equal,
    "multiply": tf.multiply,
    "pow": tf.pow,
    "subtract": tf.subtract,
}
AXES = {
    "reduce_max": tf.reduce_max,
    "reduce_mean": tf.reduce_mean,
    "reduce_min": tf.reduce_min,
    "reduce_sum": tf.reduce_sum,
}


def numbers(dtype: str, seed: int = 0) -> Any:
    return tf.cast(np.random.default_rng(seed).uniform(-2, 2, (3, 4, 5)), dtype)


def assert_same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.numpy().tobytes() == wanted.numpy().tobytes()


def both(found: Any, wanted: Any, *values: Any) -> None:
    """Compare two functions, eagerly and in a graph, and what they differentiate to."""
    assert_same(found(*values), wanted(*values))
    graph = [tf.function(each, autograph=False)(*values) for each in (found, wanted)]
    assert_same(*graph)
    if not values[0].dtype.is_floating or graph[0].dtype == tf.bool:
        return
    gradients = []
    for function in (found, wanted):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = function(*values)
        found_here = tape.gradient(result, values)
        gradients.append([tf.convert_to_tensor(one) for one in found_here if one is not None])
    for pair in zip(*gradients, strict=True):
        assert_same(*pair)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_tensor(name: str, dtype: str) -> None:
    both(getattr(direct, name), ONE[name], numbers(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_tensors(name: str, dtype: str) -> None:
    both(getattr(direct, name), TWO[name], numbers(dtype), numbers(dtype, seed=1))


@pytest.mark.parametrize("number", [0.75, 2.0, 0, 3, True])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", sorted(set(TWO) - {"divide_no_nan"}))
def test_a_number_behind_a_tensor(name: str, dtype: str, number: Any) -> None:
    tensor, function = numbers(dtype), getattr(direct, name)
    try:
        wanted = TWO[name](tensor, number)
    except Exception as error:
        with pytest.raises((type(error), TypeError)):
            function(tensor, number)
    else:
        assert_same(function(tensor, number), wanted)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, [1], (0, 2), [-1, 0], [0, 1, 2]])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
@pytest.mark.parametrize("name", AXES)
def test_reductions(name: str, dtype: str, axis: Any, keepdims: bool) -> None:
    both(
        lambda x: getattr(direct, name)(x, axis, keepdims),
        lambda x: AXES[name](x, axis, keepdims),
        numbers(dtype),
    )


@pytest.mark.parametrize("name", AXES)
def test_reductions_of_no_axes(name: str) -> None:
    scalar = tf.constant(2.5)
    assert_same(getattr(direct, name)(scalar), AXES[name](scalar))
    assert_same(getattr(direct, name)(numbers("float32"), []), numbers("float32"))


@pytest.mark.parametrize("name", ["abs", "exp", "sigmoid", "sign", "sqrt"])
def test_complex_numbers(name: str) -> None:
    both(
        getattr(direct, name), ONE[name], tf.complex(*[numbers("float32", seed) for seed in (0, 1)])
    )


def test_a_tensor_of_no_graph_in_a_graph() -> None:
    x, y = numbers("float16"), numbers("float16", seed=1)

    @tf.function(autograph=False)
    def graph(z: Any) -> Any:
        kept = direct.multiply(direct.rest_of(x), y)
        return direct.add(direct.add(kept, z), 0.5), direct.reduce_sum(kept, [0, 1])

    added, total = graph(y)
    kept = (1.0 - x) * y
    assert_same(added, kept + y + 0.5)
    np.testing.assert_allclose(total, tf.reduce_sum(kept, [0, 1]), rtol=1e-2)


def test_what_is_no_eager_tensor() -> None:
    variable = tf.Variable(numbers("float32"))
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    assert_same(direct.add(variable, variable), tf.add(variable, variable))
    assert_same(direct.add(numbers("float32"), variable), tf.add(variable, variable))
    assert_same(direct.reduce_mean(variable), tf.reduce_mean(variable))
    assert direct.multiply(ragged, 2.0).to_list() == [[2.0, 4.0], [6.0]]
    assert direct.add(tf.constant(1.0), ragged).to_list() == [[2.0, 3.0], [4.0]]
    assert direct.reduce_sum(ragged, axis=1).numpy().tolist() == [3.0, 3.0]
    array = numbers("float32").numpy()
    assert_same(direct.subtract(array, 1.0), tf.subtract(array, 1.0))


@pytest.mark.parametrize("dtype", ["int32", "float16", "bool"])
def test_cast(dtype: str) -> None:
    wanted = tf.as_dtype(dtype)
    both(lambda x: direct.cast(x, wanted), lambda x: tf.cast(x, wanted), numbers("float64"))


def test_gather_and_where() -> None:
    row, places = tf.constant([0.5, 1.5, 2.5]), tf.constant([[2, 0], [1, 1]])
    both(direct.gather, tf.gather, row, places)
    x, y = numbers("float32"), numbers("float32", seed=1)
    both(lambda a, b: direct.where(x < y, a, b), lambda a, b: tf.where(x < y, a, b), x, y)
    both(lambda a, b: direct.where(x < y, a, b), lambda a, b: tf.where(x < y, a, b), x, y[0, 0, 0])
