"""Chains of ops: which run, what they read and write, and which keys come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.slicer import AxisSlicer
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.frameworks import Framework

X = np.arange(6, dtype="float32").reshape(2, 3)
W = np.full((3, 2), 0.5, dtype="float32")


class Polynomial(TensorOp):
    """Adds up its input's powers, with a loop and a condition in Python."""

    def __init__(self, inputs: str, outputs: str, degree: int) -> None:
        super().__init__(inputs, outputs)
        self.degree = degree

    def forward(self, data: Any, state: Any) -> Any:
        total = data
        for power in range(2, self.degree + 1):
            if power % 2 == 0:
                total = total + data**power
            else:
                total = total - data**power
        return total


class Settle(TensorOp):
    """Has a condition and a loop on values that are known only in the step."""

    def __init__(self, fw: Framework, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.mean = fw.mean

    def forward(self, data: Any, state: Any) -> Any:
        total = data
        if self.mean(data) < 0:
            total = -data
        while self.mean(total) < 10:
            total = total * 2
        return total


def add(value: float, key: str = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + value, key, key, **rest)


class TestChains:
    @conforms
    def test_lists_and_single_values(self, fw: Framework) -> Any:
        network = fw.network(
            [
                LambdaOp(lambda x, w: x @ w, ["x", "w"], "y"),
                LambdaOp(lambda y: [y + 1, y * 2], "y", ["a", "b"]),
                LambdaOp(lambda a, b: [a - b], ("a", "b"), ["c"]),
                LambdaOp(lambda x: (x, -x), "x", ("p", "n")),
                TensorOp(["a", "b"], ["b", "a"]),
                TensorOp("c", "d"),
                Polynomial("x", "q", degree=4),
            ]
        )
        result = fw.step(network, {"x": X, "w": W})
        y = X @ W
        expected = {"x": X, "w": W, "y": y, "a": y * 2, "b": y + 1, "c": 1 - y, "d": 1 - y}
        assert_same(result, {**expected, "p": X, "n": -X, "q": X + X**2 - X**3 + X**4})
        return result

    @conforms
    def test_conditions_and_loops_on_values(self, fw: Framework) -> Any:
        network = fw.network([Settle(fw, "x", "y")])
        batches = [{"x": X * factor} for factor in (1, -1, 8, -2)]
        results = fw.steps(network, batches)
        assert_same([result["y"] for result in results], [X * 4, X * 4, X * 8, X * 4])
        return results

    @conforms
    def test_ops_without_inputs_or_outputs(self, fw: Framework) -> Any:
        one = fw.tensor(np.array(1, "float32"))
        seen: list[Any] = []
        network = fw.network(
            [
                LambdaOp(lambda: one, None, "one"),
                LambdaOp(lambda: [one + 1, one + 2], None, ["two", "three"]),
                LambdaOp(lambda one, x: seen.append(one), ["one", "x"], None),
                LambdaOp(lambda one: one, "one", None),
            ]
        )
        result = fw.step(network, {"x": X})
        numbers = {"one": 1, "two": 2, "three": 3}
        expected = {key: np.array(number, "float32") for key, number in numbers.items()}
        assert_same(result, {"x": X, **expected})
        assert len(seen) == 1
        return result

    @conforms
    def test_keys_that_are_overwritten(self, fw: Framework) -> Any:
        network = fw.network(
            [
                add(1),
                LambdaOp(lambda x: x * 2, "x", "y"),
                add(10),
                LambdaOp(lambda x, y: [y, x], ["x", "y"], ["x", "y"]),
            ]
        )
        batch = fw.tensors({"x": X})
        with fw.opened(network):
            result = fw.arrays(network.run_step(batch))
        assert_same(result, {"x": (X + 1) * 2, "y": X + 11})
        assert_same(fw.arrays(batch), {"x": X})
        return result

    @pytest.mark.filterwarnings("ignore:The ops of mode 'infer' were traced 8 times")
    @conforms
    def test_values_of_different_types_and_ranks(self, fw: Framework) -> Any:
        network = fw.network([LambdaOp(lambda x: x + x, "x", "y")])
        values = [
            np.array(1.5),
            np.array(3),
            np.ones(2, "float32"),
            np.ones((2, 3), "float64"),
            np.ones((0, 2), "float32"),
            np.arange(4, dtype="int32"),
            np.arange(4, dtype="uint8"),
            np.ones(3, "float16"),
            np.ones(2, "complex64"),
            np.ones((1, 2, 3, 4), "float32"),
        ]
        results = fw.steps(network, [{"x": value} for value in values])
        assert_same([result["y"] for result in results], [np.asarray(v + v) for v in values])
        return results


@conforms
def test_a_deleted_key_that_is_written_again(fw: Framework) -> Any:
    network = fw.network([add(1), Delete("x"), LambdaOp(lambda w: w + 1, "w", "x")])
    result = fw.step(network, {"x": X, "w": W})
    assert_same(result, {"x": W + 1, "w": W})
    return result


class TestDesiredKeys:
    @pytest.mark.parametrize(
        ("desired", "expected"),
        [
            (None, {"x", "w", "y", "z"}),
            (set(), {"x", "w", "y", "z"}),
            ({"y"}, {"x", "w", "y"}),
            ("z", {"x", "w", "z"}),
            (["x", "z"], {"x", "w", "z"}),
            ({"nothing"}, {"x", "w"}),
        ],
        ids=["all", "no keys", "a set", "a string", "a list", "an unknown key"],
    )
    @conforms
    def test_what_comes_back(self, fw: Framework, desired: Any, expected: set[str]) -> Any:
        network = fw.network(
            [
                LambdaOp(lambda x: x + 1, "x", "y"),
                LambdaOp(lambda y: y + 1, "y", "z"),
                LambdaOp(lambda x: x * 5, "x", "x"),
            ]
        )
        result = fw.step(network, {"x": X, "w": W}, desired_output_keys=desired)
        assert set(result) == expected
        # what was written over it was not asked for
        wanted = not desired or "x" in desired
        assert_same(result["x"], X * 5 if wanted else X)
        return result

    @pytest.mark.parametrize("sliced", [False, True])
    def test_keys_that_nothing_writes_are_missing(self, fw: Framework, sliced: bool) -> None:
        network = fw.network(
            [LambdaOp(lambda x: x * 1, "x", "y"), LambdaOp(lambda x: x * 1, "x", "w", mode="eval")],
            NumpyOp("y", "z"),
            slicers=AxisSlicer(0, "x", ["x", "y"]) if sliced else None,
        )
        result = fw.step(network, {"x": X}, desired_output_keys=["yy", "y", "w"])
        assert set(result) == {"x", "y", "z"}
        findings = network.explain("train", 1, "", ["yy"]).findings
        assert any(finding.keys == ("yy",) for finding in findings)
