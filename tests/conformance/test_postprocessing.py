"""Ops on numpy arrays, which run after the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.numpyop import LambdaOp, NumpyOp
from fastnet.op.tensorop import LambdaOp as TensorLambdaOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework

X = np.arange(6, dtype="float32").reshape(2, 3)


class PerSample(NumpyOp):
    """Takes one sample at a time, and notes what it was given."""

    def __init__(self, inputs: Any, outputs: Any, **rest: Any) -> None:
        super().__init__(inputs, outputs, **rest)
        self.seen: list[Any] = []

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        self.seen.append((type(data).__name__, state["mode"], int(state["epoch"])))
        return data / (1 + data.max())


class InPlace(NumpyOp):
    """Writes into the array that it is given."""

    def forward_batch(self, data: Any, state: dict[str, Any]) -> Any:
        data[0] = -1
        return data


class Both(NumpyOp):
    """Takes lists and gives lists, a sample at a time."""

    def forward(self, data: list[Any], state: dict[str, Any]) -> list[Any]:
        return [data[0] + data[1], data[0].sum()]


def add_one() -> TensorLambdaOp:
    return TensorLambdaOp(lambda x: x + 1, "x", "y")


class TestOps:
    @conforms
    def test_a_sample_at_a_time(self, fw: Framework) -> Any:
        op = PerSample("y", "y")
        network = fw.network([add_one()], [op, Both(["x", "y"], ["a", "b"])])
        result = fw.step(network, {"x": X}, "eval", 3)
        y = (X + 1) / (1 + (X + 1).max(1, keepdims=True))
        assert_same(result, {"x": X, "y": y, "a": X + y, "b": X.sum(1)})
        assert op.seen == [("ndarray", "eval", 3)] * 2
        return result

    @conforms
    def test_results_are_tensors_and_keep_their_types(self, fw: Framework) -> Any:
        makes: dict[str, Any] = {
            "float64": lambda y: y.astype("float64"),
            "int8": lambda y: y.astype("int8"),
            "bool": lambda y: y > 2,
            "scalar": lambda y: y[0, 0],
            "number": lambda y: 1.5,
            "count": lambda y: 7,
            "text": lambda y: "text",
            "none": lambda y: None,
            "rows": lambda y: [y[0], y[1]],
            "nest": lambda y: {"a": (y, "b", 2)},
        }
        network = fw.network([add_one()], [LambdaOp(fn, "y", key) for key, fn in makes.items()])
        with fw.opened(network):
            raw = network.run_step(fw.tensors({"x": X}))
        arrays = ["float64", "int8", "bool", "scalar", "number", "count", "x", "y"]
        assert all(fw.is_tensor(raw[key]) for key in arrays)
        result = fw.arrays(raw)
        y = X + 1
        assert_same(
            result,
            {
                "x": X,
                "y": y,
                "float64": y.astype("float64"),
                "int8": y.astype("int8"),
                "bool": y > 2,
                "scalar": np.array(1, "float32"),
                "number": np.array(1.5),
                "count": np.array(7),
                "text": "text",
                "none": None,
                "rows": [y[0], y[1]],
                "nest": {"a": (y, "b", np.array(2))},
            },
        )
        return result

    @conforms
    def test_writing_in_place(self, fw: Framework) -> Any:
        network = fw.network([add_one()], [InPlace("x", "z"), InPlace("y", "y")])
        batch = fw.tensors({"x": X})
        with fw.opened(network):
            results = [fw.arrays(network.run_step(batch)) for _ in range(2)]
        assert_same(fw.arrays(batch), {"x": X})
        written = np.concatenate([-np.ones((1, 3), "float32"), X[1:]])
        y = np.concatenate([-np.ones((1, 3), "float32"), X[1:] + 1])
        # the array that was written to is what stands under the key it was read from
        assert_same(results, [{"x": written, "z": written, "y": y}] * 2)
        return results


class TestWhen:
    @conforms
    def test_keys_that_it_reads_always_come_back(self, fw: Framework) -> Any:
        network = fw.network(
            [TensorLambdaOp(lambda x: [x + 1, x + 2, x + 3], "x", ["y", "z", "w"])],
            [LambdaOp(lambda y: y.sum(), "y", "sum"), LambdaOp(lambda y: y.max(), "y", "max")],
        )
        wanted: list[Any] = [{"z"}, {"sum"}, None]
        results = [fw.step(network, {"x": X}, desired_output_keys=keys) for keys in wanted]
        assert {"x", "y", "z"} <= set(results[0])
        assert {"x", "y", "sum"} <= set(results[1])
        assert "z" not in results[1]
        assert set(results[2]) == {"x", "y", "z", "w", "sum", "max"}
        return results
