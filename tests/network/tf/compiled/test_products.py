"""Small products of matrices in programs of XLA, which are sums of products of numbers there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.network import TFNetwork
from fastnet.network.tf.compiled.products import as_loop
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import tf
from tests.network.tf.compiled.steps import is_compiled

pytestmark = pytest.mark.tf

WAYS = [(False, False), (True, False), (False, True), (True, True)]


def matrices(rows: int, shared: int, columns: int, way: tuple[bool, bool]) -> tuple[Any, Any]:
    source = np.random.default_rng(0)
    one = source.standard_normal((shared, rows) if way[0] else (rows, shared))
    other = source.standard_normal((columns, shared) if way[1] else (shared, columns))
    return one, other


def product(one: Any, other: Any, way: tuple[bool, bool]) -> Any:
    return tf.matmul(one, other, transpose_a=way[0], transpose_b=way[1])


def by_hand(one: Any, other: Any, way: tuple[bool, bool]) -> Any:
    return (one.T if way[0] else one) @ (other.T if way[1] else other)


def compiled(one: Any, other: Any, way: tuple[bool, bool]) -> Any:
    network = TFNetwork(
        LambdaOp(lambda one, other: product(one, other, way), ["one", "other"], "y"), compile=True
    )
    with network("infer", 1):
        found = network.run_step({"one": tf.constant(one), "other": tf.constant(other)})["y"]
    assert is_compiled(network)
    return np.asarray(found)


def looped(shape: tuple[int, int, int], way: tuple[bool, bool], dtype: Any) -> bool:
    """Return whether a product is made a loop."""
    with tf.Graph().as_default() as graph:
        one, other = (tf.constant(each, dtype) for each in matrices(*shape, way))
        result = product(one, other, way)
        node = graph.as_graph_def().node[-1]
        assert node.name == result.op.name
        found = as_loop(node, result.op)
    if found is not None:
        assert found[-1].name == node.name
    return found is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (16, 4, 16), (40, 40, 40)])
def test_give_what_numpy_gives(shape: tuple[int, int, int], way: Any, dtype: str) -> None:
    one, other = (each.astype(dtype) for each in matrices(*shape, way))
    found = compiled(one, other, way)
    assert found.dtype == dtype
    rtol = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(found, by_hand(one, other, way), rtol, rtol)


@pytest.mark.parametrize("way", WAYS[:3])
def test_with_odd_numbers(way: tuple[bool, bool]) -> None:
    one, other = matrices(3, 4, 2, way)
    one[0, 0], other[1, 1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(compiled(one, other, way), by_hand(one, other, way))


@pytest.mark.parametrize("size", [0, 1])
def test_without_rows_or_shared_axes(size: int) -> None:
    one, other = np.ones((size, 3)), np.ones((3, 2))
    assert compiled(one, other, (False, False)).tolist() == [[3.0, 3.0]] * size
    one, other = np.ones((2, size)), np.ones((size, 2))
    assert compiled(one, other, (False, False)).tolist() == [[float(size)] * 2] * 2


class TestWhich:
    def test_up_to_so_many_multiplications(self) -> None:
        for way in WAYS[:2]:
            assert looped((16, 32, 32), way, "float32")
            assert not looped((16, 32, 33), way, "float32")
        assert looped((8, 16, 16), WAYS[2], "float64")
        assert not looped((8, 16, 17), WAYS[2], "float64")

    def test_none_of_both_transposed_or_in_half_precision(self) -> None:
        assert not looped((2, 2, 2), WAYS[3], "float32")
        assert not looped((2, 2, 2), WAYS[0], "bfloat16")

    def test_none_of_unknown_shape(self) -> None:
        with tf.Graph().as_default() as graph:
            given = tf.compat.v1.placeholder("float32", (None, 3))
            result = tf.matmul(given, tf.ones((3, 2)))
            assert as_loop(graph.as_graph_def().node[-1], result.op) is None
