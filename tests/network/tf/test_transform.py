"""Whole data through a network of Keras models, and what is traced for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.slicer import AxisSlicer
from tests.network.keras_models import infer, tf
from tests.network.tf_programs import FITS, Counting, first, ones, reasons

pytestmark = pytest.mark.tf


def double() -> tuple[Counting, TFNetwork]:
    op = Counting("x", "x")
    return op, TFNetwork([op, LambdaOp(lambda x: 2 * x, "x", "y")])


def values(results: list[Any], key: str = "y") -> list[Any]:
    return [result[key].numpy().tolist() for result in results]


class TestOneBatch:
    def test_uses_a_trace_that_fits(self) -> None:
        op, network = double()
        network.transform({"x": ones(2)}, "infer")
        assert (op.runs, network.traces) == (1, ())
        for size in (2, 4):
            infer(network, {"x": ones(size)})
        for size in (2, 3, 0):
            result = network.transform({"x": ones(size)}, "infer", epoch=7)
            assert result["y"].numpy().tolist() == [2.0] * size
        assert op.runs == 3
        assert reasons(network) == [first(), f"'x' has the shape (4), where (2) was traced{FITS}"]

    @pytest.mark.parametrize(
        ("batch", "mode"),
        [
            ({"x": ones(2, 2)}, "infer"),
            ({"x": ones(2)}, "eval"),
        ],
        ids=str,
    )
    def test_that_fits_none_runs_eagerly(self, batch: Any, mode: str) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op)
        infer(network, {"x": ones(2)})
        result = network.transform(batch, mode)
        assert op.runs == 2
        assert type(result["y"]) is type(batch["x"])
        assert reasons(network) == [first()]

    def test_that_fits_none_has_no_tape(self) -> None:
        class Taped(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return data * (0 if state["tape"] is None else 1)

        network = TFNetwork(Taped("x", "y"))
        infer(network, {"x": ones(2)})
        assert network.transform({"x": ones(1, 2)}, "infer")["y"].numpy().tolist() == [[0.0, 0.0]]

    def test_after_a_change_runs_eagerly(self) -> None:
        scale = {"by": 1.0}
        network = TFNetwork(LambdaOp(lambda x: x * scale["by"], "x", "y"))
        infer(network, {"x": ones(2)})
        for by in (3.0, 1.0):
            scale["by"] = by
            result = network.transform({"x": ones(2)}, "infer")
            assert result["y"].numpy().tolist() == [by, by]
        assert reasons(network) == [first()]

    def test_with_slicers_is_static(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op, slicers=AxisSlicer(axis=0, slice="x", unslice="y"))
        for _ in range(2):
            result = network.transform({"x": ones(5, 2)}, "infer")
            assert np.array_equal(result["y"], np.ones((5, 2)))
        assert op.runs == 1
        assert reasons(network) == [first()]


def batches(sizes: tuple[int, ...] = (3, 3, 1)) -> list[Any]:
    return [{"x": np.full(size, place, "float32")} for place, size in enumerate(sizes)]


WANTED = [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0], [4.0]]


class TestManyBatches:
    def test_are_static(self) -> None:
        op, network = double()
        assert values(network.transform(batches(), "infer")) == WANTED
        # one trace for just this size, and one for any
        assert op.runs == 2
        assert values(network.transform(batches(), "infer", epoch=2)) == WANTED
        assert reasons(network) == [first(), f"'x' has the shape (1), where (3) was traced{FITS}"]

    def test_of_a_dataset(self) -> None:
        op, network = double()
        numbers = np.array([0, 0, 0, 1, 1, 1, 2], "float32")
        data = tf.data.Dataset.from_tensor_slices({"x": numbers, "id": range(7)}).batch(3)
        results = network.transform(data, "infer")
        assert values(results) == WANTED
        assert values(results, "id") == [[0, 1, 2], [3, 4, 5], [6]]
        assert op.runs == 2

    def test_of_a_dataset_of_ragged_and_sparse_tensors(self) -> None:
        rows = tf.ragged.constant([[1, 2], [3], [], [4, 5, 6], [7]])
        sparse = tf.sparse.from_dense(tf.eye(5))
        data = tf.data.Dataset.from_tensor_slices({"r": rows, "s": sparse}).batch(2)
        network = TFNetwork(
            [
                LambdaOp(lambda r: tf.reduce_sum(r, axis=1), "r", "sums"),
                LambdaOp(tf.sparse.to_dense, "s", "dense"),
            ]
        )
        results = network.transform(data, "infer")
        assert values(results, "sums") == [[3, 3], [0, 15], [7]]
        assert np.array_equal(np.concatenate([one["dense"] for one in results]), np.eye(5))
        assert len(network.traces) == 1
