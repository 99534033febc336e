"""The numpy ops one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from fastnet.op.numpyop import Batch, Delete, FilteredData, NumpyOp, RemoveIf

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
        ("op", "data", "error", "text"),
        [
            (
                SumAndFirst(["x", "y"], ["sum", "first"]),
                [np.ones(3), np.ones(2)],
                ValueError,
                "SumAndFirst (inputs ['x', 'y'], outputs ['sum', 'first']) runs on one sample at a "
                "time, but its inputs have different batch sizes: {'x': 3, 'y': 2}. Define "
                "forward_batch to handle them together.",
            ),
            (
                Double("loss", "loss"),
                np.array(1.0),
                TypeError,
                "Double (inputs ['loss'], outputs ['loss']) runs on one sample at a time, but "
                "'loss' has no batch axis to split. Define forward_batch to handle it.",
            ),
            (
                SumAndFirst(["x", "y"], ["sum", "first", "second"]),
                [np.ones(2), np.ones(2)],
                ValueError,
                "SumAndFirst (inputs ['x', 'y'], outputs ['sum', 'first', 'second']) has 3 "
                "outputs, but its forward returned 2 values. Return one value for each of ['sum', "
                "'first', 'second'], in that order.",
            ),
        ],
    )
    def test_errors(self, op: NumpyOp, data: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error) as caught:
            op.forward_batch(data, STATE)
        assert str(caught.value) == text


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
