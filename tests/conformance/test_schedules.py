"""Schedulers of ops and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.tensorop import LambdaOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression

X = np.ones((2, 3), dtype="float32")


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
        network = fw.network(regression(model))
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
