"""The base of tensor ops, LambdaOp and Delete."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.backend.dispatch import get_backend
from fastnet.network import TorchNetwork
from fastnet.op.op import Op
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import FocalLoss, Hinge
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


class Largest(TensorOp):
    def forward(self, data: Any, state: Any) -> Any:
        return self.backend.reduce_max(data, None, False)


class TestBackend:
    def test_of_the_framework_that_the_op_was_built_for(self) -> None:
        op = Largest("x", "y")
        op.build("torch", torch.device("cpu"))
        assert op.backend is get_backend("torch")
        assert op.forward(torch.tensor([1.0, 6.0]), STATE) == 6.0
        op.build("np")
        assert op.backend is get_backend("np")

    def test_by_the_value_where_nothing_was_built(self) -> None:
        op = Largest("x", "y")
        assert op.forward(torch.tensor([1.0, 6.0]), STATE) == 6.0
        assert op.forward(np.array([1.0, 6.0]), STATE) == 6.0

    def test_a_class_whose_build_does_not_call_its_base(self) -> None:
        class Silent(Hinge):
            def build(self, framework: str, device: Any = None) -> None:
                self.framework = framework

        op = Silent(("p", "t"), "loss")
        with TorchNetwork([op])("eval", 1) as network:
            result = network.run_step({"p": torch.tensor([[0.5]]), "t": torch.tensor([[1.0]])})
        assert result["loss"].item() == 0.5
        assert op.framework == "torch"

    @pytest.mark.parametrize(
        "again", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))]
    )
    @pytest.mark.parametrize("built", [False, True])
    def test_of_copies(self, again: Any, built: bool) -> None:
        op = FocalLoss(("p", "t"), "loss")
        if built:
            op.build("torch")
        other = again(op)
        data = [torch.tensor([[0.5]]), torch.tensor([[1.0]])]
        assert other.forward(data, {}) == op.forward(data, {})
        assert other.backend is op.backend

    def test_of_no_framework(self) -> None:
        with pytest.raises(ValueError, match="'jax'"):
            Largest("x", "y").build("jax")
