"""Running numpy ops on samples and on batches."""

from __future__ import annotations

import threading
from collections import ChainMap
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


def add(x: Any, y: Any) -> Any:
    return x + y


class TestSamples:
    def test_ops_run_in_order(self) -> None:
        data = {"x": 1, "y": 2}
        ops = [
            LambdaOp(add, inputs=["x", "y"], outputs="z"),
            LambdaOp(lambda z: (z, -z), inputs="z", outputs=["a", "b"]),
            Delete(["x", "z"]),
            LambdaOp(lambda a: None, inputs="a"),
        ]
        assert forward_numpyop(ops, data, STATE) is None
        assert data == {"y": 2, "a": 3, "b": -3}

    def test_filtering_stops(self) -> None:
        data = {"x": 1}
        ops = [
            LambdaOp(lambda x: x + 1, "x", "x"),
            RemoveIf(lambda x: x == 2, replacement=False, inputs="x"),
            LambdaOp(lambda: 1 / 0),
        ]
        filtered = forward_numpyop(ops, data, STATE)
        assert isinstance(filtered, FilteredData)
        assert filtered.replacement is False

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

    def test_a_missing_key(self) -> None:
        with pytest.raises(MissingKeyError, match=r"Delete.*'lable'.*'label'"):
            forward_numpyop([Delete("lable")], {"label": 2}, STATE)

    def test_other_errors_pass(self) -> None:
        op = LambdaOp(lambda: int("a"))
        with pytest.raises(ValueError, match="invalid literal"):
            forward_numpyop([op], {}, STATE)
        assert not op.in_place_edits


class TestBatches:
    def test_no_ops(self) -> None:
        data: dict[str, Any] = {"x": 1}
        assert forward_numpyop([], data, STATE, batched="torch") is None
        assert data == {"x": 1}

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
        # what the ops wrote in place is in the result all the same
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

    def test_chain_map(self) -> None:
        batch, prediction = {"x": torch.ones(1)}, {"y": torch.ones(1)}
        data: Any = ChainMap(prediction, batch)
        x = batch["x"]
        forward_numpyop([LambdaOp(add, ["x", "y"], "z")], data, STATE, batched="torch")
        assert data["z"].tolist() == [2]
        assert batch["x"] is x

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
