"""Batches cut into minibatches and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


class TestSeveral:
    @conforms
    def test_in_some_modes_and_for_some_datasets(self, fw: Framework) -> Any:
        network = fw.network(
            [LambdaOp(lambda x: x - fw.mean(x), "x", "y")],
            slicers=[
                AxisSlicer(0, slice="x", unslice="y", mode="train"),
                AxisSlicer(1, slice="x", unslice="y", mode="!train", ds_id="a"),
            ],
        )
        x = X[0]
        results = [
            fw.step(network, {"x": x}, mode, ds_id=ds_id)
            for mode in ("train", "eval")
            for ds_id in ("a", "b")
        ]
        rows, columns = x - x.mean(1, keepdims=True), x - x.mean(0)
        assert_same([one["y"] for one in results], [rows, rows, columns, x - x.mean()])
        return results

    @conforms
    def test_with_deletes_and_postprocessing(self, fw: Framework) -> Any:
        network = fw.network(
            [LambdaOp(lambda x: [x + 1, x + 2], "x", ["y", "z"]), Delete("z")],
            [
                NumpyLambdaOp(lambda y, w: y.sum(1) + w, ["y", "w"], "sum"),
                NumpyLambdaOp(lambda x: x.shape[0], "x", "size"),
            ],
            AxisSlicer(0, slice="x", unslice=["x", "y"]),
        )
        x, w = X[0], np.ones(3, "float32")
        result = fw.step(network, {"x": x, "w": w})
        expected = {"x": x, "w": w, "y": x + 1, "sum": (x + 1).sum(1) + w, "size": np.array(3)}
        assert_same(result, expected)
        return result


class TestTraining:
    @conforms
    def test_an_update_a_minibatch(self, fw: Framework) -> Any:
        layers = make_layers(3, 2)
        model = fw.build(layers, fw.sgd(0.1))
        network = fw.network(
            regression(model),
            slicers=[
                SlidingSlicer([2, -1], slice=["x", "t"], unslice=None),
                AxisSlicer(0, slice="q", unslice=None),
                MeanUnslicer("loss"),
            ],
        )
        line = Line(*layers[0])
        results = []
        for batch in make_batches(3, size=6):
            given = {**batch, "q": np.ones(3, "float32")}
            (result,) = fw.steps(network, [given], "train", desired_output_keys={"loss"})
            parts = [{key: batch[key][at : at + 2] for key in "xt"} for at in (0, 2, 4)]
            loss = np.mean([line.train(part) for part in parts])
            assert_same(result["loss"], np.array(loss, "float32"))
            assert_same(fw.weights(model), line.weights)
            results.append((result, fw.weights(model)))
        return results

    @conforms
    def test_merged_over_minibatches(self, fw: Framework) -> Any:
        layers = make_layers(3, 2)
        model = fw.build(layers, fw.sgd(0.1))
        network = fw.network(
            regression(model, merge_grad=2),
            slicers=[
                SlidingSlicer([2, -1], slice=["x", "t"], unslice=None),
                SlidingSlicer([2, -1], unslice="y", unslice_shape=[4, 2]),
                MeanUnslicer("loss"),
            ],
        )
        line = Line(*layers[0])
        results = []
        for batch in make_batches(3):
            (result,) = fw.steps(network, [batch], "train")
            # equal parts, so that their average is the gradient of the whole
            assert_same(result["y"], line.predict(batch).astype("float32"))
            assert_same(result["loss"], line.train(batch))
            assert_same(fw.weights(model), line.weights)
            results.append((result, fw.weights(model)))
        return results
