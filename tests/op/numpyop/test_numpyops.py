"""Numpy ops: running them on samples and on batches, and those that run others."""

from __future__ import annotations

import itertools
import operator
import threading
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.errors import MissingKeyError
from fastnet.op.numpyop import (
    Delete,
    FilteredData,
    LambdaOp,
    NumpyOp,
    RemoveIf,
    forward_numpyop,
)
from fastnet.op.numpyop.meta import Fuse, Repeat
from fastnet.op.numpyop.univariate import Hadamard, Minmax, Onehot

pytestmark = pytest.mark.fast

STATE = {"mode": "train"}


class AddOneInPlace(NumpyOp):
    calls = 0

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        self.calls += 1
        data += 1
        return data

    def forward_batch(self, data: Any, state: dict[str, Any]) -> Any:
        return self.forward(data, state)


class Foreign:
    """An op that derives from nothing, and knows samples only."""

    inputs = ("x",)
    outputs = ("x",)
    mode = frozenset[str]()
    ds_id = frozenset[str]()
    in_list = False
    out_list = False

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return data * 3


class TestSamples:
    def test_ops_run_in_order(self) -> None:
        data = {"x": 1, "y": 2}
        ops = [
            LambdaOp(operator.add, inputs=["x", "y"], outputs="z"),
            LambdaOp(lambda z: (z, -z), inputs="z", outputs=["a", "b"]),
            Delete(["x", "z"]),
            LambdaOp(lambda a: None, inputs="a"),
        ]
        assert forward_numpyop(ops, data, STATE) is None
        assert data == {"y": 2, "a": 3, "b": -3}

    def test_fastestimators_filtering_counts(self) -> None:
        theirs = type("FilteredData", (), {"replacement": True})()
        assert forward_numpyop([LambdaOp(lambda: theirs)], {}, STATE) is theirs

    def test_read_only_arrays(self) -> None:
        array = np.zeros(2)
        array.flags.writeable = False
        data = {"x": array}
        op = AddOneInPlace("x", "x")
        forward_numpyop([op], data, STATE)
        assert data["x"].tolist() == [1, 1]
        assert array.tolist() == [0, 0]
        assert op.in_place_edits
        assert op.calls == 2
        # known from now on, so the first try succeeds
        data = {"x": array}
        forward_numpyop([op], data, STATE)
        assert data["x"].tolist() == [1, 1]
        assert op.calls == 3

    def test_only_ops_that_write_to_arrays_run_again(self) -> None:
        calls: list[int] = []
        op = LambdaOp(lambda x: int(calls.append(x) or "one"), "x", "x")
        with pytest.raises(ValueError, match="invalid literal"):
            forward_numpyop([op], {"x": 1}, STATE)
        assert calls == [1]

    def test_a_missing_key(self) -> None:
        with pytest.raises(MissingKeyError, match=r"Delete.*'lable'.*'label'"):
            forward_numpyop([Delete("lable")], {"label": 2}, STATE)


class TestBatches:
    def test_only_touched_keys_are_converted(self) -> None:
        x, kept = torch.tensor([1.0, 2.0]), torch.ones(2, requires_grad=True) * 2
        lock = threading.Lock()  # nothing could convert it
        data = {"x": x, "kept": kept, "lock": lock}
        seen: list[Any] = []

        def double(value: Any) -> Any:
            seen.append(value)
            return value * 2

        forward_numpyop([LambdaOp(double, "x", "y")], data, STATE, batched="torch")
        assert type(seen[0]) is np.ndarray
        assert torch.equal(data["y"], torch.tensor([2.0, 4.0]))
        assert torch.equal(data["x"], x)
        assert data["kept"] is kept
        assert data["lock"] is lock

    def test_the_tensors_of_the_batch_never_change(self) -> None:
        x = torch.zeros(2)
        data = {"x": x, "nest": {"a": [x]}}
        ops = [
            AddOneInPlace("x"),
            LambdaOp(lambda nest: nest["a"][0].fill(7), inputs="nest"),
        ]
        nest = data["nest"]
        forward_numpyop(ops, data, STATE, batched="torch")
        assert x.tolist() == [0, 0]
        assert nest == {"a": [x]}
        # In-place changes of the ops are still in the result.
        assert data["x"].tolist() == [1, 1]
        assert data["nest"]["a"][0].tolist() == [7, 7]

    def test_ops_without_forward_batch(self) -> None:
        data = {"x": torch.tensor([1, 2])}
        forward_numpyop([Foreign()], data, STATE, batched="torch")
        assert torch.equal(data["x"], torch.tensor([3, 6]))

    def test_tensors_in_a_graph_and_types_that_numpy_lacks(self) -> None:
        weight = torch.ones(2, requires_grad=True)
        half = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
        data = {"x": weight * 2, "half": half}
        op = LambdaOp(lambda x, half: x + half, inputs=["x", "half"], outputs="sum")
        forward_numpyop([op], data, STATE, batched="torch")
        assert data["sum"].dtype == torch.float32
        assert data["sum"].tolist() == [3.5, 4.5]
        # it was only read, so it has its own type again
        assert data["half"].dtype == torch.bfloat16
        assert data["half"].tolist() == [1.5, 2.5]

    @pytest.mark.parametrize("shared", [True, False])
    def test_shared_memory(self, shared: bool) -> None:
        data = {"x": torch.ones(2), "other": torch.ones(2)}
        op = LambdaOp(lambda x: x * 2, "x", "y")
        forward_numpyop([op], data, STATE, batched="torch", shared=shared)
        assert data["y"].is_shared() is shared
        assert data["x"].is_shared() is shared
        assert not data["other"].is_shared()

    @pytest.mark.parametrize(
        "last",
        [
            LambdaOp(lambda x: 1 / 0, "x"),
            LambdaOp(lambda x: object(), "x", "z"),  # has no tensor
            LambdaOp(lambda x: x, "nothing", "z"),
        ],
    )
    def test_an_error_leaves_the_batch(self, last: NumpyOp) -> None:
        x, y = torch.ones(1), torch.ones(1)
        data = {"x": x, "y": y}
        ops = [AddOneInPlace("x", "x"), Delete("y"), last]
        with pytest.raises((ZeroDivisionError, TypeError, MissingKeyError)):
            forward_numpyop(ops, data, STATE, batched="torch")
        assert data.keys() == {"x", "y"}
        assert data["x"] is x
        assert data["y"] is y
        assert x.tolist() == [1]


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


@pytest.mark.parametrize("replacement", [True, False])
def test_a_condition_removes_samples_and_batches(replacement: bool) -> None:
    op = RemoveIf(lambda x, y: x > y, replacement=replacement, inputs=["x", "y"])
    for forward in (op.forward, op.forward_batch):
        assert forward([1, 2], STATE) is None
        filtered = forward([2, 1], STATE)
        assert isinstance(filtered, FilteredData)
        assert filtered.replacement is replacement


class TestMetaOps:
    @pytest.mark.parametrize("batched", [None, "np"])
    def test_data_left_out(self, batched: str | None) -> None:
        seen: list[Any] = []
        fused = Fuse([RemoveIf(lambda x: True, inputs="x"), LambdaOp(seen.append, "x")])
        x = np.ones(2)
        assert isinstance(forward_numpyop([fused], {"x": x}, STATE, batched=batched), FilteredData)
        assert not seen

    def test_a_count_may_be_an_int_of_numpy(self) -> None:
        data = {"x": 0}
        forward_numpyop([Repeat(LambdaOp(lambda x: x + 3, "x", "x"), np.int64(2))], data, STATE)
        assert data["x"] == 6

    def test_a_condition_reads_keys_of_its_own(self) -> None:
        repeat = Repeat(LambdaOp(lambda x: x + 3, "x", "x"), lambda x, limit: x < limit)
        assert repeat.inputs == ["x", "limit"]
        data = {"x": 0, "limit": 10}
        assert forward_numpyop([repeat], data, STATE) is None
        assert data["x"] == 12


@pytest.mark.parametrize("index", [3, 1.0, -1])
def test_an_index_that_is_no_class(index: Any) -> None:
    with pytest.raises(AssertionError, match="Onehot"):
        Onehot("x", "y", num_classes=3).forward([index], STATE)

    if index != 1:
        with pytest.raises(IndexError, match=str(index)):
            Hadamard("x", "y", n_classes=3).forward([index], STATE)


def test_minmax_of_bytes_and_of_a_constant() -> None:
    data: dict[str, Any] = {"x": np.array([0, 51, 255], "uint8"), "c": np.full(3, 7)}
    ops = [Minmax("x", "y"), Minmax("c", "z", new_min=2, new_max=3)]
    assert forward_numpyop(ops, data, STATE) is None
    np.testing.assert_allclose(data["y"], [0, 0.2, 1], rtol=1e-6)
    assert data["z"].tolist() == [2, 2, 2]
    assert data["y"].dtype == data["z"].dtype == "float32"


@pytest.mark.parametrize(("n_classes", "length"), [(1, 1), (2, 2), (5, 8), (32, 32)])
def test_hadamard_codes_are_short_and_far_apart(n_classes: int, length: int) -> None:
    op = Hadamard("x", "y", n_classes)
    codes = np.stack([op.forward([index], STATE)[0] for index in range(n_classes)])
    assert codes.shape == (n_classes, length)
    for row, other in itertools.combinations(codes, 2):
        # The first column alternates, so only the others are compared.
        assert (row[1:] != other[1:]).sum() >= length / 2


def test_onehot_of_no_index() -> None:
    (found,) = Onehot("x", "y", num_classes=3).forward([np.zeros(0, np.int64)], STATE)
    assert found.shape == (0, 3)
