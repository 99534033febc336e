"""What meta ops refuse to be made of, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from fastnet.op import numpyop
from fastnet.op.tensorop import LambdaOp, TensorOp, meta
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from tests.refusals import refusal


def op(inputs: Any = "x", outputs: Any = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda *values: values, inputs, outputs, **rest)


class TestOfOps:
    @pytest.mark.parametrize(("make", "name"), [(lambda: Fuse([]), "Fuse"), (OneOf, "OneOf")])
    def test_none(self, make: Any, name: str) -> None:
        assert refusal(ValueError, make) == f"{name} runs other ops, but got none."

    @pytest.mark.parametrize("cls", [Fuse, OneOf, Repeat, Sometimes])
    @pytest.mark.parametrize(
        ("given", "got"),
        [
            (TensorOp, "the class TensorOp"),
            (numpyop.NumpyOp("x", "x"), "NumpyOp"),
            (3, "int"),
            (len, "builtin_function_or_method"),
        ],
    )
    def test_no_op(self, cls: Any, given: Any, got: str) -> None:
        assert refusal(TypeError, lambda: cls(given)) == (
            f"{cls.__name__} runs TensorOps, but its op 0 is {got}. Pass an instance of a TensorOp."
        )

    @pytest.mark.parametrize("make", [lambda *ops: Fuse(ops), OneOf], ids=["Fuse", "OneOf"])
    def test_other_modes_and_datasets(self, make: Any) -> None:
        name = type(make(op())).__name__
        error = AssertionError if make is OneOf else ValueError  # as in FastEstimator
        assert refusal(error, lambda: make(op(mode="train"), op(mode=["eval", "test"]))) == (
            f"The ops of {name} share one mode, but its op 0 has ['train'] and its op 1 "
            "['eval', 'test']."
        )
        assert refusal(error, lambda: make(op(ds_id="a"), op(ds_id="a"), op())) == (
            f"The ops of {name} share one ds_id, but its op 0 has ['a'] and its op 2 []."
        )

    def test_other_keys(self) -> None:
        assert refusal(AssertionError, lambda: OneOf(op(), op(inputs="y"))) == (
            "The ops of OneOf share their inputs, but its op 0 has ['x'] and its op 1 ['y']."
        )
        assert refusal(AssertionError, lambda: OneOf(op(), op(outputs="y"))) == (
            "The ops of OneOf share their outputs, but its op 0 has ['x'] and its op 1 ['y']."
        )
        assert refusal(AssertionError, lambda: OneOf(op(), op(outputs=["x"]))) == (
            "The ops of OneOf share their out_list, but its op 0 has False and its op 1 True."
        )


class TestOfNumbers:
    @pytest.mark.parametrize("probs", [[1.0], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]])
    def test_probs(self, probs: list[float]) -> None:
        assert refusal(AssertionError, lambda: OneOf(op(), op(), probs=probs)) == (
            f"OneOf's probs are one probability for each of its 2 ops, adding up to 1, not {probs}."
        )

    @pytest.mark.parametrize("prob", [-0.1, 1.1, float("nan")])
    def test_prob(self, prob: float) -> None:
        assert refusal(ValueError, lambda: Sometimes(op(), prob)) == (
            f"Sometimes has a probability from 0 to 1, not {prob}."
        )

    @pytest.mark.parametrize("repeat", [0, -2])
    def test_repeat_too_small(self, repeat: int) -> None:
        assert refusal(ValueError, lambda: Repeat(op(), repeat)) == (
            f"Repeat runs its op at least once, but repeat is {repeat}."
        )

    def test_repeat_neither_number_nor_function(self) -> None:
        assert refusal(TypeError, lambda: Repeat(op(), 2.5)) == (  # type: ignore[arg-type]
            "Repeat's repeat is a number or a function, not 2.5 of type float."
        )

    def test_max_iter(self) -> None:
        assert refusal(ValueError, lambda: Repeat(op(), lambda x: x, max_iter=0)) == (
            "Repeat's max_iter is at least 1, not 0."
        )
        assert refusal(ValueError, lambda: Repeat(op(), 3, max_iter=5)) == (
            "Repeat runs its op 3 times, so that max_iter=5 has no effect. Leave it out."
        )


class TestOfKeys:
    def test_fuse(self) -> None:
        fused = Fuse([op("x", "y"), op(["y", "w"], ["z", "x"]), op("x", None)])
        assert (fused.inputs, fused.outputs) == (["x", "w"], ["y", "z", "x"])
        assert (fused.in_list, fused.out_list) == (True, True)

    def test_sometimes(self) -> None:
        made = Sometimes(op("x", ["x", "y"], mode="train", ds_id="a"))
        assert (made.inputs, made.outputs, made.extra_inputs) == (["x", "y"], ["x", "y"], ["y"])
        assert (made.mode, made.ds_id, made.prob) == ({"train"}, {"a"}, 0.5)

    def test_one_of(self) -> None:
        made = OneOf(TensorOp("x", "y"), TensorOp("x", "y"))
        assert (made.in_list, made.out_list, made.probs) == (False, False, [0.5, 0.5])

    def test_repeat(self) -> None:
        made = Repeat(op(["x"], ["x", "y"]), lambda y, z, x: True, max_iter=4)
        assert (made.inputs, made.outputs) == (["x", "z"], ["x", "y"])
        assert (made.repeat_inputs, made.max_iter) == (["y", "z", "x"], 4)

    def test_all_are_offered(self) -> None:
        assert set(meta.__all__) <= set(dir(meta))
