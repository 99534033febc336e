"""Values of a batch that are no tensors, or hold several: passed by, read, written, changed."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches

X = np.arange(6, dtype="float32").reshape(2, 3)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Box:
    label: str
    corners: Any
    rest: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Ice:
    x: Any


def nest() -> dict[str, Any]:
    return {
        "dict": {"a": X, "b": {"c": [X + 1, "text", None]}},
        "list": [X, [X * 2, 3, 4.5], True],
        "tuple": (X, (b"bytes", X)),
        "pair": Pair(X, Pair("left", X + 3)),
        "box": Box("cat", (X, 1), [X]),
        "ice": Ice({"x": X}),
        "empty": [{}, [], ()],
        "set": {"a", "b"},
        "range": range(3),
        "name": "a name",
        "count": 7,
        "rate": 0.25,
        "flag": False,
        "none": None,
    }


class TestPassedThrough:
    @conforms
    def test_by_the_network(self, fw: Framework) -> Any:
        network = fw.network([LambdaOp(lambda x: x + 1, "x", "y")])
        results = fw.steps(network, [{"x": X, **nest()}, {"x": X, **nest()}])
        assert_same(results, [{"x": X, "y": X + 1, **nest()}] * 2)
        return results

    @conforms
    def test_the_callers_are_as_they_were(self, fw: Framework) -> Any:
        batch = fw.tensors({"nest": nest()["dict"]})
        network = fw.network([LambdaOp(lambda nest: dict(nest, more=1), "nest", "nest")])
        with fw.opened(network):
            result = fw.arrays(network.run_step(batch))
        assert_same(fw.arrays(batch), {"nest": nest()["dict"]})
        assert_same(result, {"nest": {**nest()["dict"], "more": 1}})
        return result

    @conforms
    def test_results_belong_to_the_caller(self, fw: Framework) -> Any:
        network = fw.network(
            [LambdaOp(lambda x, nest: [{"a": [x], "b": ["text"]}, nest], ["x", "nest"], ["y", "z"])]
        )
        batch = fw.tensors({"x": X, "nest": nest()["dict"]})
        with fw.opened(network):
            spoiled = network.run_step(batch)
            spoiled["y"]["a"].append("more")
            spoiled["y"]["b"].clear()
            spoiled["new"] = spoiled.pop("x")
            result = fw.arrays(network.run_step(batch))
        assert_same(
            result,
            {
                "x": X,
                "nest": nest()["dict"],
                "y": {"a": [X], "b": ["text"]},
                "z": nest()["dict"],
            },
        )
        return result


class TestReadAndWritten:
    @conforms
    def test_parts_of_nests(self, fw: Framework) -> Any:
        network = fw.network(
            [
                LambdaOp(lambda a, b: a["b"]["c"][0] + b[1][1] + b[1][2], ["dict", "list"], "sum"),
                LambdaOp(lambda pair, box: pair.left * box.corners[1], ["pair", "box"], "product"),
                LambdaOp(lambda ice: ice.x["x"] - 1, "ice", "less"),
            ]
        )
        result = fw.step(network, nest())
        assert_same(result, {**nest(), "sum": X + 8.5, "product": X, "less": X - 1})
        return result

    @conforms
    def test_other_mappings(self, fw: Framework) -> Any:
        network = fw.network(
            [
                LambdaOp(lambda x: collections.OrderedDict(b=x, a=x + 1), "x", "ordered"),
                LambdaOp(lambda ordered, q: ordered["a"] + q["z"], ["ordered", "q"], "sum"),
            ]
        )
        batch = {"x": fw.tensor(X), "q": collections.defaultdict(list, {"z": fw.tensor(X)})}
        with fw.opened(network):
            result = network.run_step(batch)
        assert type(result["ordered"]) is collections.OrderedDict
        assert list(result["ordered"]) == ["b", "a"]
        assert result["q"] is batch["q"]
        return fw.arrays({key: result[key] for key in ("x", "sum")})

    @conforms
    def test_a_batch_of_another_class(self, fw: Framework) -> Any:
        network = fw.network([LambdaOp(lambda x: x + 1, "x", "y")])
        batches: list[Any] = [
            collections.OrderedDict(x=X, z=1),
            collections.ChainMap({"x": X}, {"x": 0, "z": 1}),
            collections.defaultdict(list, {"x": X, "z": 1}),
        ]
        results = []
        with fw.opened(network):
            for batch in batches:
                result = network.run_step({**batch, "x": fw.tensor(X)})
                assert type(result) is dict
                results.append(fw.arrays(result))
        assert_same(results, [{"x": X, "y": X + 1, "z": 1}] * 3)
        return results


class TestConstants:
    @conforms
    def test_that_change_from_step_to_step(self, fw: Framework) -> Any:
        def scale(x: Any, how: str, by: Any) -> Any:
            if by is None:
                return x
            return x * by if how == "up" else x / by

        network = fw.network([LambdaOp(scale, ["x", "how", "by"], "y")])
        settings: list[Any] = [("up", 2), ("down", 4), ("up", 0.5), ("up", None), ("up", 2)]
        results = fw.steps(network, [{"x": X, "how": how, "by": by} for how, by in settings])
        expected = [X * 2, X / 4, X * np.float32(0.5), X, X * 2]
        assert_same([result["y"] for result in results], expected)
        return results

    @conforms
    def test_that_are_equal_to_nothing(self, fw: Framework) -> Any:
        class Odd:
            def __eq__(self, other: object) -> bool:
                raise ValueError("not to be compared")

            __hash__ = None  # type: ignore[assignment]

        network = fw.network([LambdaOp(lambda x, odd: x + 1, ["x", "odd"], "y")])
        values: list[Any] = [float("nan"), np.nan, Odd(), Odd()]
        results = []
        with fw.opened(network):
            for value in [*values, *values]:
                result = network.run_step({"x": fw.tensor(X), "odd": value})
                assert result["odd"] is value
                results.append(fw.array(result["y"]))
        assert_same(results, [X + 1] * 8)
        return results

    @conforms
    def test_an_object_that_only_python_knows(self, fw: Framework) -> Any:
        class Labels:
            def __init__(self, factor: float) -> None:
                self.factor = factor

        network = fw.network(
            [LambdaOp(lambda x, labels: [x * labels.factor, labels], ["x", "labels"], ["y", "z"])]
        )
        one, two = Labels(2.0), Labels(3.0)
        results = []
        with fw.opened(network):
            for labels in (one, two, one):
                result = network.run_step({"x": fw.tensor(X), "labels": labels})
                assert result["z"] is labels
                assert result["labels"] is labels
                results.append(fw.arrays(result["y"]))
        assert_same(results, [X * 2, X * 3, X * 2])
        return results


class TestTrainingOnNests:
    @conforms
    def test_on_parts_of_nests(self, fw: Framework) -> Any:
        layers = make_layers(3, 2)
        line = Line(*layers[0])
        model = fw.build(layers, fw.sgd(0.1))
        network = fw.network(
            [
                LambdaOp(lambda data: [data.left["x"], data.right[0]], "data", ["x", "t"]),
                ModelOp(model, "x", "y"),
                MeanSquaredError(("y", "t"), "loss"),
                UpdateOp(model, "loss"),
                LambdaOp(lambda y, loss: {"y": y, "all": [loss, (y,)]}, ["y", "loss"], "out"),
            ]
        )
        batches = make_batches(3)
        batches.append({key: value[:2] for key, value in batches[0].items()})
        given = [{"data": Pair({"x": one["x"]}, [one["t"], "text", None])} for one in batches]
        results = fw.steps(network, given, "train", desired_output_keys={"out"})
        for batch, result in zip(batches, results, strict=True):
            y = line.predict(batch).astype("float32")
            assert_same(result["out"], {"y": y, "all": [line.train(batch), (y,)]})
        assert_same(fw.weights(model), line.weights)
        return results
