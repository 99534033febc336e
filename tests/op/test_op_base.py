"""The base of all ops and of tensor ops."""

from __future__ import annotations

import copy
import pickle
from typing import Any, get_type_hints

import pytest
import torch

from fastnet.backend.dispatch import get_backend
from fastnet.op import Op
from fastnet.op.numpyop import Delete
from fastnet.op.op import get_inputs_by_op, is_delete, write_outputs_by_op
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import FocalLoss
from fastnet.types import Keys, Names, is_op

pytestmark = pytest.mark.fast


class TestInit:
    @pytest.mark.parametrize(
        ("keys", "names", "is_list"),
        [
            (None, [], False),
            ("x", ["x"], False),
            (["x"], ["x"], True),
            (("x", "y"), ["x", "y"], True),
            ([], [], True),
            ({"x": 1}.keys(), ["x"], True),
            (frozenset({"x"}), ["x"], True),
        ],
    )
    def test_keys(self, keys: Any, names: list[str], is_list: bool) -> None:
        op = Op(inputs=keys, outputs=keys)
        assert (op.inputs, op.in_list) == (names, is_list)
        assert (op.outputs, op.out_list) == (names, is_list)


def test_types() -> None:
    hints = get_type_hints(Op.__init__)
    assert hints["inputs"] == hints["outputs"] == Keys | None
    assert hints["mode"] == hints["ds_id"] == Names


def test_reading_and_writing() -> None:
    store: dict[str, Any] = {"x": 1, "y": 2}
    assert get_inputs_by_op(Op(inputs="x"), store) == 1
    assert get_inputs_by_op(Op(inputs=["x", "y"]), store) == [1, 2]
    write_outputs_by_op(Op(outputs=["z"]), store, [3])
    assert store["z"] == 3


class TestIsDelete:
    def test_ours(self) -> None:
        assert is_delete(Delete("x"))
        assert not is_delete(Op(inputs="x"))

    def test_a_class_of_that_name(self) -> None:
        theirs = type("Delete", (), {"__module__": "fastestimator.op.numpyop.numpyop"})
        derived = type("Mine", (theirs,), {"__module__": "mine"})
        assert is_delete(theirs())
        assert is_delete(derived())

    def test_another_name_does_not_delete(self) -> None:
        assert not is_delete(type("Deleted", (), {"__module__": "mine"})())


def test_an_op_without_forward_is_none_yet() -> None:
    assert not is_op(Op())


STATE = {"mode": "infer"}


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
