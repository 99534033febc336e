"""The base of tensor ops, LambdaOp and Delete."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.op.op import Op
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.types import is_op, is_tensor_op
from tests.network.programs import raising

STATE = {"mode": "infer"}


class TestTensorOp:
    def test_by_itself_hands_its_input_through(self) -> None:
        x = torch.ones(2)
        assert TensorOp("x", "y").forward(x, STATE) is x
        data = [x, x]
        assert TensorOp(["x", "y"], ["y", "x"]).forward(data, STATE) is data

    def test_has_all_that_a_network_asks_for(self) -> None:
        op = TensorOp("x", ["y"], mode="!infer", ds_id=["a", "b"])
        assert isinstance(op, Op)
        assert is_op(op)
        assert is_tensor_op(op)
        assert (op.inputs, op.outputs) == (["x"], ["y"])
        assert (op.in_list, op.out_list) == (False, True)
        assert op.mode == {"train", "eval", "test"}
        assert op.ds_id == {"a", "b"}
        assert op.get_fe_models() == set()
        assert op.get_fe_loss_keys() == set()
        assert op.fe_retain_graph() is None
        assert op.fe_retain_graph(True) is None
        assert op.build("torch", torch.device("cpu")) is None
        assert op.build(framework="tf") is None

    @pytest.mark.parametrize(
        ("kwargs", "text"),
        [
            ({"inputs": ""}, "An input or output key is an empty string. Give it a name."),
            (
                {"outputs": "a;b"},
                "The input or output key 'a;b' contains ':' or ';', which keys may not. Rename it.",
            ),
            (
                {"mode": "trian"},
                "Unknown mode: 'trian'. A mode is one of train, eval, test, infer, or one of them "
                "with a leading '!' to run in all the others.",
            ),
            (
                {"ds_id": ["a", "!b"]},
                "Dataset ids with and without '!' cannot be mixed, but got '!b', 'a'. Name either "
                "the ids to run for, or those to leave out.",
            ),
        ],
    )
    def test_malformed(self, kwargs: Any, text: str) -> None:
        with raising(AssertionError, f"TensorOp: {text}"):
            TensorOp(**kwargs)
        with raising(AssertionError, f"LambdaOp: {text}"):
            LambdaOp(lambda: None, **kwargs)


class TestLambdaOp:
    def test_an_argument_for_each_input(self) -> None:
        def fn(*values: Any) -> Any:
            return values

        assert LambdaOp(fn).forward([], STATE) == ()
        assert LambdaOp(fn, "x").forward([1], STATE) == (1,)
        assert LambdaOp(fn, ["x", "y"], "z").forward([1, 2], STATE) == (1, 2)

    def test_takes_lists_and_returns_what_its_outputs_say(self) -> None:
        for inputs in (None, "x", ["x"], ("x", "y")):
            assert LambdaOp(print, inputs).in_list
        assert not LambdaOp(print, "x", "y").out_list
        assert LambdaOp(print, "x", ["y"]).out_list

    def test_settings(self) -> None:
        op = LambdaOp(fn=print, inputs="x", outputs="y", mode=["train"], ds_id="!a")
        assert op.fn is print
        assert op.mode == {"train"}
        assert op.ds_id == {"!a"}


class TestDelete:
    @pytest.mark.parametrize("keys", ["x", ["x"], ("x", "y")])
    def test_says_that_it_deletes(self, keys: Any) -> None:
        op = Delete(keys, mode="eval", ds_id="a")
        assert op.deletes_inputs
        assert op.inputs == ([keys] if isinstance(keys, str) else list(keys))
        assert op.outputs == []
        assert (op.mode, op.ds_id) == ({"eval"}, {"a"})
        assert op.forward([1], STATE) is None
