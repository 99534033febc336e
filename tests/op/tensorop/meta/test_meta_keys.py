"""Errors for bad arguments of meta ops."""

from __future__ import annotations

from typing import Any

from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes


def op(inputs: Any = "x", outputs: Any = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda *values: values, inputs, outputs, **rest)


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
