"""Ops on numpy arrays, which run after the rest: those of the library, and those of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import Batch, FilteredData, LambdaOp, NumpyOp, RemoveIf, forward_numpyop
from fastnet.op.numpyop.meta import OneOf, Sometimes
from fastnet.op.tensorop import LambdaOp as TensorLambdaOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.catalogue import Row
from tests.conformance.frameworks import Framework
from tests.conformance.numpy_catalogue import NUMPY_ROWS

X = np.arange(12, dtype="float32").reshape(4, 3)
STATE = {"mode": "train", "epoch": 1}


class Shift(NumpyOp):
    """Adds to each sample a number that is drawn for it."""

    def forward(self, data: Any, state: Any) -> Any:
        return data + np.float32(np.random.randint(1000))


def add(value: float, key: str = "y") -> LambdaOp:
    return LambdaOp(lambda x: x + np.float32(value), key, key)


def written(row: Row) -> dict[str, Any]:
    assert row.compute
    return {key: np.asarray(value) for key, value in row.compute(row.batch).items()}


@pytest.mark.parametrize("row", NUMPY_ROWS, ids=str)
def test_a_batch_is_its_samples(fw: Framework, row: Row) -> None:
    # a function of the user's is given whole batches, and may tell them from samples
    if isinstance(row.ops(fw)[-1], LambdaOp):
        pytest.skip("the function sees the sum of a sample, or of a batch")
    samples = []
    for index in range(len(row.batch["x"])):
        sample: dict[str, Any] = {key: value[index] for key, value in row.batch.items()}
        assert forward_numpyop(row.ops(fw), sample, STATE) is None
        samples.append(sample)
    for key, values in written(row).items():
        assert_same(np.stack([np.asarray(sample[key]) for sample in samples]), values)


class TestDrawing:
    """numpy's global seed decides what is drawn, whatever the framework."""

    @pytest.mark.fast
    @pytest.mark.parametrize("kind", ["OneOf", "Sometimes"])
    @conforms
    def test_meta_ops(self, fw: Framework, kind: str) -> Any:
        probs = [0.25, 0.75]
        if kind == "OneOf":
            op: Any = OneOf(add(1, "x"), add(2, "x"), probs=probs)
            draw: Any = lambda: 1 + int(np.random.choice(2, p=probs))  # noqa: E731
        else:
            op = Sometimes(add(1, "x"), 0.4)
            draw = lambda: int(np.random.uniform() < 0.4)  # noqa: E731
        np.random.seed(5)
        results = fw.steps(fw.network([], [op]), [{"x": X}] * 20)
        np.random.seed(5)
        drawn = [draw() for _ in range(20)]
        assert len(set(drawn)) == 2
        assert_same([result["x"] for result in results], [X + np.float32(one) for one in drawn])
        return results

    @conforms
    def test_for_each_sample(self, fw: Framework) -> Any:
        network = fw.network([], [Shift("x", "x")])
        np.random.seed(8)
        result = fw.step(network, {"x": X})
        np.random.seed(8)
        drawn = [np.random.randint(1000) for _ in range(4)]
        assert_same(result, {"x": X + np.array(drawn, "float32")[:, None]})
        return result


class TestOfPipelines:
    """Ops that stand in front of a network, not behind it."""

    def test_a_network_refuses_to_drop_samples(self, fw: Framework) -> None:
        op = LambdaOp(lambda x: FilteredData() if x.sum() > 20 else x, "x", "y")
        network = fw.network([], [op])
        assert_same(fw.step(network, {"x": X[:2]})["y"], X[:2])
        with pytest.raises(ValueError, match=r"LambdaOp.*x.*FilteredData.*pipeline"):
            fw.step(network, {"x": X})

    @conforms
    def test_a_pipeline_of_them_in_front_of_a_network(self, fw: Framework) -> Any:
        """Samples through the ops before a Batch, and those that are left as one batch."""
        batch_op = Batch(batch_size=2, pad_value=-1.0, drop_last=True)
        on_samples = [
            LambdaOp(lambda x: x[x < 10], "x", "x"),
            RemoveIf(lambda x: bool(x.sum() == 12), inputs="x", replacement=False),
        ]
        left = []
        for row in X:
            sample = {"x": row}
            filtered = forward_numpyop(on_samples, sample, STATE)
            if filtered is None:
                left.append(sample)
            else:
                assert filtered.replacement is False
        # the second row adds up to 12, the last ends early
        assert [len(sample["x"]) for sample in left] == [3, 3, 1]
        batch = batch_op.collate_fn(left)
        assert forward_numpyop([add(1, "x")], batch, STATE, batched=fw.target) is None
        network = fw.network([TensorLambdaOp(lambda x: x * 2, "x", "y")])
        with fw.opened(network):
            result = fw.arrays(network.run_step(batch))
        assert Batch(collate_fn=len).collate_fn is len
        padded = np.array([[0, 1, 2], [6, 7, 8], [9, -1, -1]], "float32") + 1
        assert_same(result, {"x": padded, "y": padded * 2})
        return result


PAIR = X[:2]


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
        result = fw.step(network, {"x": PAIR}, "eval", 3)
        y = (PAIR + 1) / (1 + (PAIR + 1).max(1, keepdims=True))
        assert_same(result, {"x": PAIR, "y": y, "a": PAIR + y, "b": PAIR.sum(1)})
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
            raw = network.run_step(fw.tensors({"x": PAIR}))
        arrays = ["float64", "int8", "bool", "scalar", "number", "count", "x", "y"]
        assert all(fw.is_tensor(raw[key]) for key in arrays)
        result = fw.arrays(raw)
        y = PAIR + 1
        assert_same(
            result,
            {
                "x": PAIR,
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
        batch = fw.tensors({"x": PAIR})
        with fw.opened(network):
            results = [fw.arrays(network.run_step(batch)) for _ in range(2)]
        assert_same(fw.arrays(batch), {"x": PAIR})
        written = np.concatenate([-np.ones((1, 3), "float32"), PAIR[1:]])
        y = np.concatenate([-np.ones((1, 3), "float32"), PAIR[1:] + 1])
        # the array that was written to is what stands under the key it was read from
        assert_same(results, [{"x": written, "z": written, "y": y}] * 2)
        return results


@conforms
def test_keys_that_it_reads_always_come_back(fw: Framework) -> Any:
    network = fw.network(
        [TensorLambdaOp(lambda x: [x + 1, x + 2, x + 3], "x", ["y", "z", "w"])],
        [LambdaOp(lambda y: y.sum(), "y", "sum"), LambdaOp(lambda y: y.max(), "y", "max")],
    )
    wanted: list[Any] = [{"z"}, {"sum"}, None]
    results = [fw.step(network, {"x": PAIR}, desired_output_keys=keys) for keys in wanted]
    assert {"x", "y", "z"} <= set(results[0])
    assert {"x", "y", "sum"} <= set(results[1])
    assert "z" not in results[1]
    assert set(results[2]) == {"x", "y", "z", "w", "sum", "max"}
    return results
