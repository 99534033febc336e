"""Whole data through a network of Keras models, and what is traced for it."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.slicer import AxisSlicer
from tests.network.keras_models import infer, line, regression, same_weights, tf, train, twins
from tests.network.programs import is_free
from tests.network.tf_programs import FITS, Counting, Doing, first, noting, ones, reasons

pytestmark = pytest.mark.tf


def double() -> tuple[Counting, TFNetwork]:
    op = Counting("x", "x")
    return op, TFNetwork([op, LambdaOp(lambda x: 2 * x, "x", "y")])


def values(results: list[Any], key: str = "y") -> list[Any]:
    return [result[key].numpy().tolist() for result in results]


class TestOneBatch:
    def test_runs_op_by_op(self) -> None:
        op, network = double()
        for _ in range(2):
            result = network.transform({"x": ones(2)}, "infer")
            assert result["y"].numpy().tolist() == [2.0, 2.0]
        assert op.runs == 2
        assert network.traces == ()
        assert is_free(network)

    def test_uses_a_trace_that_fits(self) -> None:
        op, network = double()
        for size in (2, 4):
            infer(network, {"x": ones(size)})
        assert op.runs == 2
        for size in (2, 3, 0):
            result = network.transform({"x": ones(size)}, "infer", epoch=7)
            assert result["y"].numpy().tolist() == [2.0] * size
        assert op.runs == 2
        assert reasons(network) == [first(), f"'x' has the shape (4), where (2) was traced{FITS}"]

    @pytest.mark.parametrize(
        ("batch", "mode"),
        [
            ({"x": ones(2, 2)}, "infer"),
            ({"x": ones(2, dtype="float64")}, "infer"),
            ({"x": [ones(2)]}, "infer"),
            ({"x": "a"}, "infer"),
            ({"x": ones(2)}, "eval"),
        ],
        ids=str,
    )
    def test_that_fits_none_runs_op_by_op(self, batch: Any, mode: str) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op)
        infer(network, {"x": ones(2)})
        result = network.transform(batch, mode)
        assert op.runs == 2
        assert type(result["y"]) is type(batch["x"])
        assert reasons(network) == [first()]

    def test_after_other_layers_were_frozen_runs_op_by_op(self) -> None:
        model = fastnet.build(line, None)
        op, runs = noting("x", "x")
        network = TFNetwork([op, ModelOp(model, "x", "y")])
        infer(network, {"x": ones(2, 2)})
        model.trainable = False
        network.transform({"x": ones(2, 2)}, "infer")
        assert runs.qsize() == 2
        model.trainable = True
        network.transform({"x": ones(2, 2)}, "infer")
        assert runs.qsize() == 2
        model.trainable = False
        infer(network, {"x": ones(2, 2)})
        assert len(reasons(network)) == 2
        assert reasons(network)[0] == first()
        assert "_trainable has changed" in reasons(network)[1]

    def test_leaves_the_callers_batch_alone(self) -> None:
        array, inner = np.ones(2), {"z": [1.5, "a"]}
        batch = {"x": array, "inner": inner, "n": 3, "name": "b", "none": None}
        _, network = double()
        for _ in range(2):
            result = network.transform(batch, "infer")
            assert list(batch) == ["x", "inner", "n", "name", "none"]
            assert batch["x"] is array
            assert batch["inner"] is inner
            assert inner == {"z": [1.5, "a"]}
            assert type(inner["z"][0]) is float
            result["inner"]["z"].append(1)
            infer(network, {"x": tf.constant(array)})
        assert tf.is_tensor(result["n"])
        assert tf.is_tensor(result["inner"]["z"][0])
        assert (result["name"], result["none"], result["inner"]["z"][1]) == ("b", None, "a")

    def test_numbers_of_it_are_tensors(self) -> None:
        op, network = double()
        for number in range(3):
            assert network.transform({"x": number}, "infer")["y"].numpy() == 2 * number
        infer(network, {"x": tf.constant(1, tf.int64)})
        for number in range(3):
            assert network.transform({"x": number}, "infer")["y"].numpy() == 2 * number
        assert op.runs == 4

    @pytest.mark.parametrize("mapping", [collections.OrderedDict, collections.UserDict])
    def test_is_any_mapping(self, mapping: Any) -> None:
        _, network = double()
        assert values([network.transform(mapping(x=np.ones(2)), "infer")]) == [[2.0, 2.0]]

    def test_trains(self) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, "adam")
        fastnet.build(lambda: twin, "adam")
        network, static = TFNetwork(regression(model)), TFNetwork(regression(twin))
        for _ in range(2):
            network.transform({"x": ones(3, 2)}, "train")
        assert network.traces == ()
        train(static, [{"x": ones(3, 2)}])
        static.transform({"x": ones(3, 2)}, "train")
        assert len(static.traces) == 1
        np.testing.assert_allclose(model.get_weights()[0], twin.get_weights()[0], rtol=1e-5)

    def test_with_slicers_is_static(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op, slicers=AxisSlicer(axis=0, slice="x", unslice="y"))
        for _ in range(2):
            result = network.transform({"x": ones(5, 2)}, "infer")
            assert np.array_equal(result["y"], np.ones((5, 2)))
        assert op.runs == 1
        assert reasons(network) == [first()]

    def test_goes_through_postprocessing(self) -> None:
        op = NumpyLambdaOp(lambda y: np.asarray(y) + 1, "y", "z")
        network = TFNetwork(LambdaOp(lambda x: 2 * x, "x", "y"), postprocessing=op)
        for _ in range(2):
            result = network.transform({"x": ones(2)}, "infer")
            assert np.array_equal(result["z"], [3.0, 3.0])
            infer(network, {"x": ones(2)})

    def test_an_error_in_it_names_the_op(self) -> None:
        network = TFNetwork(LambdaOp(lambda x: x["nothing"], "x", "y"))
        with pytest.raises(KeyError) as caught:
            network.transform({"x": {}}, "infer")
        assert caught.value.__notes__ == ["Raised by LambdaOp (op 0, inputs ['x'], outputs ['y'])."]
        assert is_free(network)


def batches(sizes: tuple[int, ...] = (3, 3, 1)) -> list[Any]:
    return [{"x": np.full(size, place, "float32")} for place, size in enumerate(sizes)]


WANTED = [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0], [4.0]]


class TestManyBatches:
    @pytest.mark.parametrize("kind", [list, tuple, iter, lambda data: (one for one in data)])
    def test_of_any_iterable_are_static(self, kind: Any) -> None:
        op, network = double()
        assert values(network.transform(kind(batches()), "infer")) == WANTED
        # one trace for just this size, and one for any
        assert op.runs == 2
        assert values(network.transform(kind(batches()), "infer", epoch=2)) == WANTED
        assert reasons(network) == [first(), f"'x' has the shape (1), where (3) was traced{FITS}"]

    def test_of_a_dataset(self) -> None:
        op, network = double()
        numbers = np.array([0, 0, 0, 1, 1, 1, 2], "float32")
        data = tf.data.Dataset.from_tensor_slices({"x": numbers, "id": range(7)}).batch(3)
        results = network.transform(data, "infer")
        assert values(results) == WANTED
        assert values(results, "id") == [[0, 1, 2], [3, 4, 5], [6]]
        assert op.runs == 2

    def test_of_a_dataset_of_unknown_shapes(self) -> None:
        op, network = double()
        data = tf.data.Dataset.from_generator(
            lambda: iter(batches()), output_signature={"x": tf.TensorSpec(None)}
        )
        assert values(network.transform(data, "infer")) == WANTED
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

    def test_of_a_loader_of_torch(self) -> None:
        op, network = double()
        items = [{"x": torch.tensor(float(place)), "name": str(place)} for place in (0, 0, 0, 1)]
        loader = torch.utils.data.DataLoader(items, batch_size=3)
        results = network.transform(loader, "infer")
        assert values(results) == [[0.0, 0.0, 0.0], [2.0]]
        assert [result["name"] for result in results] == [["0", "0", "0"], ["1"]]
        assert op.runs == 2

    def test_of_what_gives_a_loader(self) -> None:
        seen: list[Any] = []

        @contextmanager
        def pipeline(**context: Any) -> Iterator[Any]:
            seen.append(context)
            yield batches()

        op, network = double()
        assert values(network.transform(pipeline, "eval", epoch=3, ds_id="d")) == WANTED
        assert seen == [{"mode": "eval", "epoch": 3, "ds_id": "d", "shuffle": False}]
        assert op.runs == 2

    def test_leave_the_callers_batches_alone(self) -> None:
        data = batches()
        arrays = [batch["x"] for batch in data]
        _, network = double()
        network.transform(data, "infer")
        assert [list(batch) for batch in data] == [["x"]] * 3
        assert all(batch["x"] is array for batch, array in zip(data, arrays, strict=True))

    def test_come_with_a_bar_if_wanted(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, network = double()
        assert values(network.transform(batches(), "infer", progress=True)) == WANTED
        assert "3/3" in capsys.readouterr().err
        network.transform(batches(), "infer")
        assert capsys.readouterr().err == ""

    def test_train(self) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, "sgd")
        fastnet.build(lambda: twin, "sgd")
        network, other = TFNetwork(regression(model)), TFNetwork(regression(twin))
        data = [{"x": ones(size, 2)} for size in (3, 3, 2)]
        network.transform(data, "train")
        train(other, data)
        assert same_weights(model, twin)
        second = f"'x' has the shape (2, 2), where (3, 2) was traced{FITS}"
        assert reasons(network) == [first("train"), second]

    def test_that_are_none(self) -> None:
        op, network = double()
        assert network.transform([], "infer") == []
        assert op.runs == 0

    def test_an_error_leaves_the_network_free(self) -> None:
        def fail(x: Any, state: Any) -> Any:
            if x.dtype == tf.int32:
                raise ValueError("as told")
            return x

        network = TFNetwork(Doing(fail, "x", "y"))
        with pytest.raises(ValueError, match="as told"):
            network.transform([{"x": ones(2)}, {"x": tf.constant([1])}], "infer")
        assert is_free(network)
        assert len(network.transform([{"x": ones(2)}], "infer")) == 1
        assert len(network.traces) == 1

    @pytest.mark.parametrize("data", [3, "abc", None])
    def test_what_is_no_data(self, data: Any) -> None:
        _, network = double()
        with pytest.raises(TypeError):
            network.transform(data, "infer")
        assert is_free(network)
