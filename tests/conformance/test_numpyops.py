"""The numpy ops of the library as postprocessing in both frameworks, and by themselves."""

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


class TestEach:
    @pytest.mark.parametrize("row", NUMPY_ROWS, ids=str)
    @conforms
    def test_values_in_a_network(self, fw: Framework, row: Row) -> Any:
        network, _ = row.network(fw)
        result = fw.step(network, row.batch, "eval")
        assert_same(result, {**row.batch, **written(row)})
        return result

    @pytest.mark.parametrize("row", NUMPY_ROWS, ids=str)
    def test_a_batch_is_its_samples(self, fw: Framework, row: Row) -> None:
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
        padded = np.array([[0, 1, 2], [6, 7, 8], [9, -1, -1]], "float32") + 1
        assert_same(result, {"x": padded, "y": padded * 2})
        return result
