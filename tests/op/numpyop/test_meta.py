"""Numpy ops that run other numpy ops: on samples, on batches, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import (
    Delete,
    FilteredData,
    LambdaOp,
    RemoveIf,
    forward_numpyop,
)
from fastnet.op.numpyop.meta import Fuse, Repeat
from fastnet.types import is_numpy_op

STATE = {"mode": "train"}


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
