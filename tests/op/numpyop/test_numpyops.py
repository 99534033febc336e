"""The numpy ops one by one, and those that run others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from fastnet.op.numpyop import (
    Batch,
    Delete,
    FilteredData,
    LambdaOp,
    NumpyOp,
    RemoveIf,
    forward_numpyop,
)
from fastnet.op.numpyop.meta import Fuse, Repeat
from fastnet.op.numpyop.univariate import Hadamard, Minmax, Onehot
from fastnet.types import is_numpy_op

STATE = {"mode": "train"}


class Double(NumpyOp):
    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        assert state is STATE
        return data * 2


class SumAndFirst(NumpyOp):
    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return [data[0] + data[1], data[0]]


class TestForwardBatch:
    def test_no_inputs(self) -> None:
        class Constant(NumpyOp):
            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                assert data is None
                return 5

        assert Constant(outputs="x").forward_batch(None, STATE) == 5

    def test_no_samples(self) -> None:
        assert Double("x", "y").forward_batch(np.ones((0, 2)), STATE).shape == (0,)
        op = SumAndFirst(["x", "y"], ["sum", "first"])
        assert [len(column) for column in op.forward_batch([np.ones(0)] * 2, STATE)] == [0, 0]

    def test_a_filtered_sample_filters_the_batch(self) -> None:
        class Picky(NumpyOp):
            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return FilteredData(replacement=False) if data > 1 else data

        assert isinstance(Picky("x", "x").forward_batch(np.array([1, 2]), STATE), FilteredData)

    @pytest.mark.parametrize(
        ("outputs", "data", "text"),
        [
            (["sum", "first"], [np.ones(3), np.ones(2)], "batch sizes: {'x': 3, 'y': 2}"),
            (["sum", "first"], [np.array(1.0), np.ones(2)], "'x' has no batch axis to split"),
            (["sum", "first", "second"], [np.ones(2)] * 2, "3 outputs, but.* returned 2 values"),
        ],
    )
    def test_errors(self, outputs: list[str], data: Any, text: str) -> None:
        op = SumAndFirst(["x", "y"], outputs)
        with pytest.raises((TypeError, ValueError), match=rf"SumAndFirst .*{text}"):
            op.forward_batch(data, STATE)


class TestDelete:
    def test_it_does_nothing_itself(self) -> None:
        assert Delete("x").forward(1, STATE) is None
        assert Delete("x").forward_batch(1, STATE) is None


class TestRemoveIf:
    @pytest.mark.parametrize("replacement", [True, False])
    def test_condition(self, replacement: bool) -> None:
        op = RemoveIf(lambda x, y: x > y, replacement=replacement, inputs=["x", "y"])
        for forward in (op.forward, op.forward_batch):
            assert forward([1, 2], STATE) is None
            filtered = forward([2, 1], STATE)
            assert isinstance(filtered, FilteredData)
            assert filtered.replacement is replacement


class TestBatch:
    def test_attributes(self) -> None:
        op = Batch(batch_size=4, drop_last=True, mode="train", ds_id="a")
        assert (op.batch_size, op.drop_last, op.mode, op.ds_id) == (4, True, {"train"}, {"a"})
        assert (op.inputs, op.outputs) == ([], [])
        assert Batch(batch_size=0).batch_size == 0
        assert Batch().batch_size is None

    def test_collate_fn(self) -> None:
        def own(batch: list[dict[str, Any]]) -> dict[str, Any]:
            return batch[0]

        assert Batch(collate_fn=own).collate_fn is own
        assert Batch().collate_fn is default_collate

    def test_padding(self) -> None:
        samples = [{"x": np.array([1]), "y": 5}, {"x": np.array([2, 3]), "y": 6}]
        before = [dict(sample) for sample in samples]
        batch = Batch(pad_value=-1).collate_fn(samples)
        assert batch["x"].tolist() == [[1, -1], [2, 3]]
        assert torch.equal(batch["y"], torch.tensor([5, 6]))
        # the samples are the dataset's own
        assert all(sample["x"] is old["x"] for sample, old in zip(samples, before, strict=True))


def add(value: float, key: str = "x", out: str | None = None, **rest: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + value, key, out or key, **rest)


def run(op: Any, batched: str | None = None, **data: Any) -> dict[str, Any]:
    assert forward_numpyop([op], data, STATE, batched=batched) is None
    return data


class TestFuse:
    def test_reads_and_writes_what_its_ops_do(self) -> None:
        fused = Fuse([add(1, "x", "y"), LambdaOp(lambda y, w: [y * w, -y], ["y", "w"], ["z", "y"])])
        assert is_numpy_op(fused)
        assert (fused.inputs, fused.outputs) == (["x", "w"], ["y", "z"])
        assert run(fused, x=2, w=5) == {"x": 2, "w": 5, "y": -3, "z": 15}

    def test_what_it_deletes_inside_is_no_output(self) -> None:
        fused = Fuse([add(1, "x", "y"), add(1, "y", "z"), Delete("y")])
        assert (fused.inputs, fused.outputs) == (["x"], ["z"])
        assert run(fused, x=1) == {"x": 1, "z": 3}

    @pytest.mark.parametrize("batched", [None, "np"])
    def test_data_left_out(self, batched: str | None) -> None:
        seen: list[Any] = []
        fused = Fuse([RemoveIf(lambda x: True, inputs="x"), LambdaOp(seen.append, "x")])
        x = np.ones(2)
        assert isinstance(forward_numpyop([fused], {"x": x}, STATE, batched=batched), FilteredData)
        assert not seen


class TestRepeat:
    @pytest.mark.parametrize(("most", "expected"), [(None, 10), (2, 6), (1, 3)])
    def test_while_a_condition_holds(self, most: int | None, expected: int) -> None:
        op = LambdaOp(lambda x: x + 3 if x < 7 else x + 1, "x", "x")
        repeat = Repeat(op, lambda x, limit: x < limit, max_iter=most)
        assert repeat.inputs == ["x", "limit"]
        assert run(repeat, x=0, limit=10)["x"] == expected

    def test_it_runs_at_least_once(self) -> None:
        assert run(Repeat(add(1), lambda x: False), x=1) == {"x": 2}

    def test_data_left_out(self) -> None:
        repeat = Repeat(Fuse([add(1), RemoveIf(lambda x: x > 3, inputs="x")]), 10)
        data = {"x": 0}
        assert isinstance(forward_numpyop([repeat], data, STATE), FilteredData)


X = np.array([[1, -2, 3], [0.5, 4, -1]])


def written(op: Any, value: Any) -> Any:
    data = {"x": value}
    assert forward_numpyop([op], data, STATE) is None
    return data["y"]


def check(actual: Any, expected: Any, dtype: str) -> None:
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


class TestUnivariate:
    @pytest.mark.parametrize(("classes", "length"), [(2, None), (5, None), (5, 16), (16, 16)])
    def test_hadamard(self, classes: int, length: int | None) -> None:
        op = Hadamard("x", "y", n_classes=classes, code_length=length)
        codes = written(op, np.arange(classes))
        size = length or {2: 2, 5: 8}[classes]
        assert codes.shape == (classes, size)
        assert codes.dtype == "float32"
        assert set(np.unique(codes)) == {-1, 1}
        differ = (codes[:, None] != codes[None]).sum(-1)
        assert (differ[~np.eye(classes, dtype=bool)] >= size // 2 - 1).all()
        for index in (1, [1], np.array([1]), np.int64(1)):
            np.testing.assert_array_equal(written(op, index), codes[1])
        np.testing.assert_array_equal(written(op, [1, 0]), codes[[1, 0]])

    def test_minmax(self) -> None:
        check(written(Minmax("x", "y"), X), (X + 2) / 6, "float32")
        check(written(Minmax("x", "y", new_min=-1, new_max=3), X), (X + 2) / 6 * 4 - 1, "float32")
        check(written(Minmax("x", "y", new_min=2, new_max=3), np.full(3, 7)), [2] * 3, "float32")
        bytes_ = np.array([0, 51, 255], "uint8")
        check(written(Minmax("x", "y"), bytes_), [0, 0.2, 1], "float32")


@pytest.mark.parametrize("index", [3, 1.0])
def test_an_index_that_is_no_class(index: Any) -> None:
    with pytest.raises(AssertionError, match="Onehot"):
        Onehot("x", "y", num_classes=3).forward([index], STATE)
