"""Numpy ops that run other numpy ops: on samples, on batches, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op import tensorop
from fastnet.op.numpyop import (
    Batch,
    Delete,
    FilteredData,
    LambdaOp,
    NumpyOp,
    RemoveIf,
    forward_numpyop,
)
from fastnet.op.numpyop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.types import is_numpy_op
from tests.refusals import refusal

STATE = {"mode": "train"}


class Grow(NumpyOp):
    """Works on one sample at a time: a batch is split for it."""

    def forward(self, data: Any, state: Any) -> Any:
        assert data.ndim == 1
        return data + data.sum()


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

    def test_ops_on_samples_of_a_batch(self) -> None:
        x = np.arange(6.0).reshape(2, 3)
        found = run(Fuse([Grow("x", "x"), add(1)]), "np", x=x)
        np.testing.assert_array_equal(found["x"], x + x.sum(1, keepdims=True) + 1)

    @pytest.mark.parametrize("batched", [None, "np"])
    def test_data_left_out(self, batched: str | None) -> None:
        seen: list[Any] = []
        fused = Fuse([RemoveIf(lambda x: True, inputs="x"), LambdaOp(seen.append, "x")])
        x = np.ones(2)
        assert isinstance(forward_numpyop([fused], {"x": x}, STATE, batched=batched), FilteredData)
        assert not seen


class TestRepeat:
    def test_a_number_of_times(self) -> None:
        assert run(Repeat(LambdaOp(lambda x: 2 * x, "x", "x"), 5), x=1) == {"x": 32}

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


class TestChoices:
    @pytest.mark.parametrize("prob", [0.0, 1.0, 0.3])
    def test_sometimes(self, prob: float) -> None:
        np.random.seed(0)
        op = Sometimes(add(1, "x", "y"), prob)
        seen = [run(op, x=1, y=0)["y"] for _ in range(300)]
        assert set(seen) == ({0, 2} if prob == 0.3 else {2 * int(prob)})
        assert abs(np.mean(seen) / 2 - prob) < 0.1

    @pytest.mark.parametrize("probs", [None, [0.6, 0.1, 0.3], [0.0, 1.0, 0.0]])
    @pytest.mark.parametrize("batched", [None, "np"])
    def test_one_of(self, probs: list[float] | None, batched: str | None) -> None:
        np.random.seed(0)
        op = OneOf(*[add(value) for value in (1, 2, 3)], probs=probs)
        seen = [int(run(op, batched, x=np.zeros(1))["x"][0]) for _ in range(300)]
        for value, expected in zip((1, 2, 3), probs or [1 / 3] * 3, strict=True):
            assert abs(seen.count(value) / 300 - expected) < 0.1

    def test_nested(self) -> None:
        op = Repeat(Fuse([Sometimes(add(1), 1.0), OneOf(add(2), add(2))]), lambda x: x < 7)
        assert run(op, x=0) == {"x": 9}


class TestErrors:
    @pytest.mark.parametrize(("make", "name"), [(lambda: Fuse([]), "Fuse"), (OneOf, "OneOf")])
    def test_none(self, make: Any, name: str) -> None:
        assert refusal(ValueError, make) == f"{name} runs other ops, but got none."

    @pytest.mark.parametrize("cls", [Fuse, OneOf, Repeat, Sometimes])
    def test_no_numpy_op(self, cls: Any) -> None:
        name = cls.__name__
        for given, got in [
            (NumpyOp, "the class NumpyOp"),
            (tensorop.TensorOp("x", "x"), "TensorOp"),
            (None, "NoneType"),
        ]:
            # no op at all is an empty list to Fuse
            if cls is Fuse and given is None:
                continue
            assert refusal(TypeError, lambda given=given: cls(given)) == (  # type: ignore[misc]
                f"{name} runs NumpyOps, but its op 0 is {got}. Pass an instance of a NumpyOp."
            )
        assert refusal(ValueError, lambda: cls(Batch())) == (
            f"The op 0 of {name} is a Batch, which stands among the ops of a pipeline only."
        )

    def test_ops_that_differ(self) -> None:
        assert refusal(ValueError, lambda: Fuse([add(1, mode="train"), add(1, mode="eval")])) == (
            "The ops of Fuse share one mode, but its op 0 has ['train'] and its op 1 ['eval']."
        )
        assert refusal(AssertionError, lambda: OneOf(add(1), add(1, "x", "y"))) == (
            "The ops of OneOf share their outputs, but its op 0 has ['x'] and its op 1 ['y']."
        )

    @pytest.mark.parametrize("probs", [[1.0], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]])
    def test_probs(self, probs: list[float]) -> None:
        assert refusal(AssertionError, lambda: OneOf(add(1), add(2), probs=probs)) == (
            f"OneOf's probs are one probability for each of its 2 ops, adding up to 1, not {probs}."
        )

    def test_numbers(self) -> None:
        assert refusal(ValueError, lambda: Sometimes(add(1), 1.5)) == (
            "Sometimes has a probability from 0 to 1, not 1.5."
        )
        assert refusal(ValueError, lambda: Repeat(add(1), 0)) == (
            "Repeat runs its op at least once, but repeat is 0."
        )
        assert refusal(ValueError, lambda: Repeat(add(1), 2, max_iter=3)) == (
            "Repeat runs its op 2 times, so that max_iter=3 has no effect. Leave it out."
        )
        assert refusal(TypeError, lambda: Repeat(add(1), "x")) == (  # type: ignore[arg-type]
            "Repeat's repeat is a number or a function, not 'x' of type str."
        )

    def test_rua(self) -> None:
        assert refusal(AttributeError, lambda: Fuse(add(1)).set_rua_level(0.5)) == (
            "RUA sets the strength of its ops, but LambdaOp, inside of Fuse, has no set_rua_level."
        )
