"""Values that are containers or no tensors at all: read, written, passed through, changed."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import Framework
from tests.containers import CONTAINERS, Labels, Picky, Point, Registry, Store

Make = Callable[[Any], Any]

X = np.arange(6, dtype="float32").reshape(2, 3)


def holds_arrays(make: Make) -> bool:
    """Return whether a container may hold what has no hash."""
    try:
        make(X)
    except TypeError:
        return False
    return True


NESTED: list[Make] = [
    lambda leaf: Labels([Point(leaf, Registry("inner", a=leaf))], "outer"),
    lambda leaf: {"a": Picky(leaf, second=[leaf]), "b": Store("inner", c=(leaf,))},
]
MAKES = [make for make in CONTAINERS if holds_arrays(make)] + NESTED
EMPTY: list[Any] = [{}, [], (), Labels((), "none"), Registry("none"), Store("none")]

makes = pytest.mark.parametrize("make", MAKES)


def spelled(value: Any) -> Any:
    """Spell a nest out: classes, places, attributes, and numbers whatever holds them."""
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return array.tolist()
    if isinstance(value, MutableMapping):
        parts: Any = [(key, spelled(part)) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = list(map(spelled, value))
    elif isinstance(value, set | frozenset):
        parts = sorted(map(spelled, value), key=repr)
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        parts = [(name, spelled(getattr(value, name))) for name in names]
    else:
        return value
    own = {name: one for name, one in getattr(value, "__dict__", {}).items() if type(one) is str}
    return type(value), parts, own


class HandThrough(TensorOp):
    """Notes what it is given, and hands it through."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[Any] = []

    def forward(self, data: Any, state: Any) -> Any:
        self.seen.append(type(data))
        return data


class KeepBatch(NumpyOp):
    """Hands whole batches of arrays through, and notes of which class they are."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[Any] = []

    def forward_batch(self, data: Any, state: Any) -> Any:
        self.seen.append(type(data))
        return data


@makes
class TestNetworks:
    def test_read_and_written(self, fw: Framework, make: Make) -> None:
        op = HandThrough("c", "d")
        network = fw.network([op, LambdaOp(lambda x: make(x + 1), "x", "e")])
        given = make(fw.tensor(X))
        with fw.opened(network):
            result = network.run_step({"c": given, "x": fw.tensor(X)})
        assert set(op.seen) == {type(given)}
        assert spelled(result["c"]) == spelled(result["d"]) == spelled(make(X))
        assert spelled(result["e"]) == spelled(make(X + 1))
        assert spelled(given) == spelled(make(X))

    def test_transformed(self, fw: Framework, make: Make) -> None:
        op = HandThrough("c", "d")
        network = fw.network([op])
        given = {"c": make(X), "b": make(X)}
        for result in (network.transform(given, "infer"), network.transform([given], "infer")[0]):
            for key in ("b", "c", "d"):
                assert spelled(result[key]) == spelled(make(X))
        assert set(op.seen) == {type(given["c"])}
        assert spelled(given) == spelled({"c": make(X), "b": make(X)})

    def test_postprocessed(self, fw: Framework, make: Make) -> None:
        op = KeepBatch("c", "d")
        network = fw.network([LambdaOp(lambda x: make(x), "x", "c")], pops=[op])
        with fw.opened(network):
            result = network.run_step({"x": fw.tensor(X)})
        assert op.seen == [type(result["d"])]
        assert spelled(result["c"]) == spelled(result["d"]) == spelled(make(X))


@pytest.mark.parametrize("empty", EMPTY, ids=lambda empty: type(empty).__name__)
def test_empty_ones(fw: Framework, empty: Any) -> None:
    network = fw.network([HandThrough("c", "d")], pops=[KeepBatch("d", "d")])
    with fw.opened(network):
        result = network.run_step({"c": empty})
    again = network.transform({"c": empty}, "infer")
    for value in (result["c"], result["d"], again["c"], again["d"]):
        assert spelled(value) == spelled(empty)


NEST = {"a": X, "b": {"c": [X + 1, "text", None]}}


class TestBatches:
    def test_results_belong_to_the_caller_and_batches_stay(self, fw: Framework) -> None:
        network = fw.network(
            [
                LambdaOp(lambda x, nest: [{"a": [x]}, nest], ["x", "nest"], ["y", "z"]),
                LambdaOp(lambda nest: dict(nest, more=1), "nest", "nest"),
            ]
        )
        batch = fw.tensors({"x": X, "nest": NEST})
        with fw.opened(network):
            spoiled = network.run_step(batch)
            spoiled["y"]["a"].append("more")
            spoiled["new"] = spoiled.pop("x")
            result = fw.arrays(network.run_step(batch))
        assert_same(result, {"x": X, "nest": {**NEST, "more": 1}, "y": {"a": [X]}, "z": NEST})
        assert_same(fw.arrays(batch), {"x": X, "nest": NEST})

    def test_of_another_class(self, fw: Framework) -> None:
        network = fw.network([LambdaOp(lambda x: x + 1, "x", "y")])
        x = fw.tensor(X)
        batches: list[Any] = [
            collections.OrderedDict(x=x, z=1),
            collections.ChainMap({"x": x}, {"x": 0, "z": 1}),
            collections.defaultdict(list, {"x": x, "z": 1}),
        ]
        with fw.opened(network):
            for batch in batches:
                result = network.run_step(batch)
                assert type(result) is dict
                assert_same(fw.arrays(result), {"x": X, "y": X + 1, "z": 1})


class TestConstants:
    def test_that_change_from_step_to_step(self, fw: Framework) -> None:
        def scale(x: Any, how: str, by: Any) -> Any:
            if by is None:
                return x
            return x * by if how == "up" else x / by

        network = fw.network([LambdaOp(scale, ["x", "how", "by"], "y")])
        settings: list[Any] = [("up", 2), ("down", 4), ("up", 0.5), ("up", None), ("up", 2)]
        results = fw.steps(network, [{"x": X, "how": how, "by": by} for how, by in settings])
        expected = [X * 2, X / 4, X * np.float32(0.5), X, X * 2]
        assert_same([result["y"] for result in results], expected)

    def test_that_are_equal_to_nothing(self, fw: Framework) -> None:
        class Odd:
            def __eq__(self, other: object) -> bool:
                raise ValueError("not to be compared")

            __hash__ = None  # type: ignore[assignment]

        network = fw.network([LambdaOp(lambda x, odd: x + 1, ["x", "odd"], "y")])
        values: list[Any] = [float("nan"), np.nan, Odd(), Odd()]
        with fw.opened(network):
            for value in [*values, *values]:
                result = network.run_step({"x": fw.tensor(X), "odd": value})
                assert result["odd"] is value
                assert_same(fw.array(result["y"]), X + 1)
