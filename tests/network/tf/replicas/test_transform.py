"""Batches that `transform` spreads over several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from tests.containers import Labels, Picky, Point, Registry, Store
from tests.network.tf.replicas.devices import (
    ALL_THREE,
    STRATEGY,
    assert_same_weights,
    halves,
    plain,
    under,
)
from tests.network.tf.replicas.programs import (
    STEPS,
    by_hand,
    mean,
    mlp,
    momentum,
    regression,
    same_model,
    square_error,
    twice,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]


def rows_seen(x: Any) -> Any:
    return tf.shape(x)[:1]


class TestTransform:
    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize("several", [False, True], ids=["a batch", "a list"])
    @pytest.mark.parametrize("devices", [2, 3])
    def test_batches_of_any_size(self, size: int, several: bool, devices: int) -> None:
        strategy = STRATEGY if devices == 2 else ALL_THREE
        ops = [
            LambdaOp(lambda x: x * 10, "x", "y"),
            LambdaOp(lambda x: tf.repeat(x, 3), "x", "thrice"),
            LambdaOp(rows_seen, "x", "sizes"),
            LambdaOp(tf.reduce_mean, "x", "mean"),
            LambdaOp(lambda words: tf.strings.length(words), "words", "lengths"),
        ]
        x = np.arange(size, dtype="float32")
        words = np.array(["w" * number for number in range(size)])
        batch = {"x": x, "words": words, "other": np.arange(7), "text": "text"}
        with under(strategy):
            network = TFNetwork(ops)
            if several:
                (result,) = network.transform([batch], mode="infer")
            else:
                result = network.transform(batch, mode="infer")
        result = plain(result)
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["y"], 10 * x)
        np.testing.assert_array_equal(result["thrice"], np.repeat(x, 3))
        np.testing.assert_array_equal(result["lengths"], np.arange(size))
        np.testing.assert_array_equal(result["other"], np.arange(7))
        assert result["text"] == "text"
        assert strategy.num_replicas_in_sync == devices
        # as even as it goes, the first devices having more; a device without samples has copies
        expected = [len(part) for part in np.array_split(x, devices)]
        assert result["sizes"].tolist() == ([1] * size if size < devices else expected)
        if size >= devices:
            means = [part.mean() for part in np.array_split(x, devices)]
            np.testing.assert_allclose(result["mean"], np.mean(means), rtol=1e-6)
        assert batch["x"] is x

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: Labels([x, x], "name"),
            lambda x: Registry("name", a=x, b=x),
            lambda x: Picky(x, second=x),
            lambda x: Store("name", a=x, b=x),
            lambda x: Point(x, Labels([x], "name")),
        ],
    )
    def test_containers_keep_their_classes(self, two: None, make: Any) -> None:
        x = np.arange(4, dtype="float32")
        network = TFNetwork([LambdaOp(lambda c: c, "c", "d")])
        result = network.transform({"c": make(x)}, mode="infer")
        for key in ("c", "d"):
            assert type(result[key]) is type(make(x))
            for name in ("name", "note"):
                assert getattr(result[key], name, None) == getattr(make(x), name, None)
            parts = result[key].values() if isinstance(result[key], Mapping) else result[key]
            for part in parts:
                inner = part[0] if isinstance(part, Labels) else part
                np.testing.assert_array_equal(inner, x)

    def test_values_that_are_nests_or_have_no_axes(self, two: None) -> None:
        def look(nest: Any, scalar: Any, text: Any) -> Any:
            assert text == "text"
            return nest["a"][0] + nest["b"] * scalar

        network = TFNetwork([LambdaOp(look, ["nest", "scalar", "text"], "y")])
        x = np.arange(5.0)
        nest = {"a": [x, "c"], "b": 10 * x}
        result = network.transform({"nest": nest, "scalar": 2.0, "text": "text"}, mode="infer")
        np.testing.assert_array_equal(result["y"], 21 * x)
        np.testing.assert_array_equal(result["nest"]["a"][0], x)
        assert (result["nest"]["a"][1], result["scalar"].numpy()) == ("c", 2.0)

    def test_ragged_and_sparse_values(self, two: None) -> None:
        def look(ragged: Any, sparse: Any) -> Any:
            return ragged * 2, tf.sparse.map_values(tf.negative, sparse)

        network = TFNetwork([LambdaOp(look, ["ragged", "sparse"], ["double", "minus"])])
        rows = [[1.0, 2.0], [], [3.0]]
        table = np.array([[0, 7, 0], [8, 0, 0], [0, 0, 9]])
        for size in (3, 1):
            ragged = tf.ragged.constant(rows[:size])
            batch = {"ragged": ragged, "sparse": tf.sparse.from_dense(table[:size])}
            for result in (
                network.transform(batch, mode="infer"),
                network.transform([batch], mode="infer")[0],
            ):
                assert result["double"].to_list() == [
                    [2 * one for one in row] for row in rows[:size]
                ]
                np.testing.assert_array_equal(tf.sparse.to_dense(result["minus"]), -table[:size])
                assert result["ragged"] is ragged

    def test_datasets(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        x = np.arange(9)
        dataset = tf.data.Dataset.from_tensor_slices({"x": x}).batch(4)
        for data in (dataset, STRATEGY.experimental_distribute_dataset(dataset)):
            results = network.transform(data, mode="infer")
            assert [result["y"].shape[0] for result in results] == [4, 4, 1]
            np.testing.assert_array_equal(np.concatenate([one["x"] for one in results]), x)
            np.testing.assert_array_equal(np.concatenate([one["y"] for one in results]), x + 1)
        assert len(network.traces) == 2  # one for the first size, and one for all others
        result = network.transform({"x": x[:1]}, mode="infer")
        np.testing.assert_array_equal(result["y"], [1])

    def test_values_of_several_lengths(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x, y: tf.reduce_sum(x) + y, ["x", "y"], "z")])
        batch = {"x": np.arange(3), "y": np.arange(4)}
        with pytest.raises(AssertionError) as caught:
            network.transform(batch, mode="infer")
        assert str(caught.value) == (
            "A batch is to be spread over 2 devices, but the first axes of what ops read differ: "
            "{'x': [3], 'y': [4]}. Let each have a length of the number of samples."
        )
        batch["x"] = batch["y"]
        np.testing.assert_array_equal(network.transform(batch, mode="infer")["z"], [1, 2, 7, 8])

    @pytest.mark.parametrize("size", [1, 4])
    def test_postprocessing_sees_whole_batches(self, two: None, size: int) -> None:
        def look(x: Any, y: Any, other: Any) -> Any:
            seen.append([type(one) for one in (x, y, other)])
            return x + y + other

        seen: list[Any] = []
        pops = NumpyLambdaOp(look, ["x", "y", "other"], "z")
        network = TFNetwork([LambdaOp(lambda x: x * 10, "x", "y")], postprocessing=pops)
        x = np.arange(size)
        result = network.transform({"x": x, "other": 100 * x}, mode="infer")
        np.testing.assert_array_equal(result["z"], 111 * x)
        assert result["z"].shape == (size,)
        with network(mode="infer", epoch=1):
            result = network.run_step({"x": halves(x), "other": halves(100 * x)})
        np.testing.assert_array_equal(result["z"], 111 * x)

    def test_training(self) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            x, y = STEPS[0]
            network.transform({"x": x, "y": y}, mode="train")
            network.transform([{"x": x, "y": y} for x, y in STEPS], mode="train")
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), [STEPS[0], *STEPS])
        assert_same_weights(model, twin)


class TestAgainstFastEstimator:
    """The same batches in FastEstimator, in the environment that has it."""

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_transform(self, two: None, fastestimator: Any, size: int) -> None:
        from fastestimator.op.tensorop import LambdaOp as TheirLambdaOp

        x = np.arange(3.0 * size, dtype="float32").reshape(size, 3)
        batch = {"x": x, "other": np.arange(size), "text": "text"}
        for as_list in (False, True):
            data: Any = [batch] if as_list else batch
            results = []
            for network_class, op in (
                (TFNetwork, LambdaOp),
                (fastestimator.network.TFNetwork, TheirLambdaOp),
            ):
                ops = [op(fn=twice, inputs="x", outputs="y"), op(fn=mean, inputs="x", outputs="m")]
                results.append(network_class(ops).transform(data, mode="infer"))
            mine, theirs = (one[0] if as_list else one for one in results)
            assert mine.keys() == theirs.keys()
            assert mine["text"] == theirs["text"] == "text"
            for key in ("x", "other", "y", "m"):
                np.testing.assert_array_equal(mine[key], theirs[key])
