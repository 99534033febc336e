"""The base class of all ops."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from fastnet.op import Op
from fastnet.op.numpyop import Delete
from fastnet.op.op import get_inputs_by_op, is_delete, write_outputs_by_op
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
