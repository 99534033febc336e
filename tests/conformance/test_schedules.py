"""Schedulers of ops, optimizers, slicers and postprocessing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler
from fastnet.slicer import AxisSlicer
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches

X = np.ones((2, 3), dtype="float32")


class Growing(Scheduler[Any]):
    """Makes a new op in each epoch."""

    def get_current_value(self, epoch: int) -> Any:
        return add(float(epoch))

    def get_all_values(self) -> list[Any]:
        return [add(0.0)]


def add(value: float, key: str = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + value, key, key, **rest)


class TestOps:
    @conforms
    def test_by_epoch(self, fw: Framework) -> Any:
        network = fw.network(
            [
                EpochScheduler({2: add(1), 4: None, 5: add(10)}),
                RepeatScheduler([None, add(100), add(1000)]),
                add(10000),
            ]
        )
        results = [fw.step(network, {"x": X}, "train", epoch) for epoch in (1, 2, 3, 4, 5, 6, 2)]
        sums = [result["x"][0, 0] - 1 for result in results]
        assert sums == [10000, 10101, 11001, 10000, 10110, 11010, 10101]
        return results

    @conforms
    def test_keys_that_come_and_go(self, fw: Framework) -> Any:
        network = fw.network(
            [
                LambdaOp(lambda x: x * 2, "x", "y"),
                RepeatScheduler([LambdaOp(lambda y: y + 1, "y", "z"), Delete("y")]),
            ]
        )
        results = [fw.step(network, {"x": X}, "eval", epoch) for epoch in (1, 2, 3)]
        assert [set(result) for result in results] == [{"x", "y", "z"}, {"x"}, {"x", "y", "z"}]
        return results

    @conforms
    def test_ops_that_a_scheduler_makes_on_the_spot(self, fw: Framework) -> Any:
        network = fw.network([Growing(), add(0.5)])
        results = [fw.step(network, {"x": X}, "eval", epoch) for epoch in (1, 2, 3, 2)]
        assert [result["x"][0, 0] - 1 for result in results] == [1.5, 2.5, 3.5, 2.5]
        return results


class TestOptimizers:
    @pytest.mark.parametrize("kind", ["epochs", "repeat"])
    @conforms
    def test_rates(self, fw: Framework, kind: str) -> Any:
        layers = make_layers(3, 2)
        fast, slow = fw.sgd(0.5), fw.sgd(0.125)
        schedules = {
            "epochs": EpochScheduler({1: fast, 3: slow}),
            "repeat": RepeatScheduler([fast, slow]),
        }
        model = fw.build(layers, schedules[kind])
        rates = [fw.rate(model)]
        network = fw.network(_regression(model))
        line = Line(*layers[0])
        weights = []
        for epoch in (1, 2, 3, 4):
            batches = make_batches(2, seed=epoch)
            results = fw.steps(network, batches, "train", epoch)
            rates.append(fw.rate(model))
            losses = [line.train(batch, rates[-1]) for batch in batches]
            assert_same([result["loss"] for result in results], losses)
            assert_same(fw.weights(model), line.weights)
            weights.append(fw.weights(model))
        expected = [0.5] * 3 + [0.125] * 2 if kind == "epochs" else [0.5] + [0.5, 0.125] * 2
        assert rates == expected
        return rates, weights

    @conforms
    def test_the_callers_scheduler_is_not_written_to(self, fw: Framework) -> Any:
        values = {1: "sgd", 2: fw.sgd(0.5), 4: None}
        schedule = EpochScheduler(values)
        model = fw.build(make_layers(3, 2), schedule)
        assert schedule.epoch_dict is values
        assert values[1] == "sgd"
        network = fw.network(_regression(model))
        rates = []
        for epoch in (1, 2, 3):
            fw.steps(network, make_batches(1), "train", epoch)
            rates.append(fw.rate(model))
        np.testing.assert_allclose(rates, [0.01, 0.5, 0.5])
        fw.steps(network, make_batches(1), "eval", 4)
        assert model.current_optimizer is None
        return rates, fw.weights(model)


class TestAround:
    @conforms
    def test_slicers(self, fw: Framework) -> Any:
        network = fw.network(
            [LambdaOp(lambda x: x - fw.mean(x), "x", "y")],
            slicers=EpochScheduler(
                {
                    2: AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
                    3: AxisSlicer(axis=1, slice="x", unslice=["x", "y"]),
                    4: None,
                }
            ),
        )
        x = np.arange(6, dtype="float32").reshape(2, 3)
        results = [fw.step(network, {"x": x}, "eval", epoch) for epoch in (1, 2, 3, 4)]
        whole, rows, columns = (x - x.mean(axis, keepdims=True) for axis in (None, 1, 0))
        expected = [{"x": x, "y": y} for y in (whole, rows, columns, whole)]
        assert_same(results, expected)
        return results

    @conforms
    def test_postprocessing(self, fw: Framework) -> Any:
        network = fw.network(
            [LambdaOp(lambda x: x + 1, "x", "y")],
            [
                RepeatScheduler([NumpyLambdaOp(lambda y: y * 2, "y", "y"), None]),
                EpochScheduler({3: NumpyLambdaOp(lambda y: y.sum(), "y", "sum", mode="!train")}),
            ],
        )
        results = [
            fw.step(network, {"x": X}, mode, epoch)
            for mode in ("train", "infer")
            for epoch in (1, 2, 3, 4)
        ]
        assert [result["y"][0, 0] for result in results] == [4, 2, 4, 2] * 2
        assert ["sum" in result for result in results] == [False] * 6 + [True] * 2
        assert_same(results[6]["sum"], np.array(24, "float32"))
        return results


def _regression(model: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        MeanSquaredError(("y", "t"), "loss"),
        UpdateOp(model, "loss"),
    ]
