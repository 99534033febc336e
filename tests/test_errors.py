"""The texts that several modules share."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import numpy as np
import pytest
import torch

from fastnet import errors
from tests.kernel.ops import Op, shown

pytestmark = pytest.mark.fast


class ModelOp(Op):
    pass


class TestDescribeOp:
    @pytest.mark.parametrize(
        ("op", "position", "text"),
        [
            (ModelOp("x", "y"), 2, "ModelOp (op 2, inputs ['x'], outputs ['y'])"),
            (ModelOp(["x", "z"], "y"), None, "ModelOp (inputs ['x', 'z'], outputs ['y'])"),
            (ModelOp("x"), 0, "ModelOp (op 0, inputs ['x'])"),
            (ModelOp(None, "y"), None, "ModelOp (outputs ['y'])"),
            (ModelOp(), 7, "ModelOp (op 7)"),
            (ModelOp(), None, "ModelOp"),
            (3.5, None, "float"),
            (None, 1, "NoneType (op 1)"),
        ],
    )
    def test_text(self, op: object, position: int | None, text: str) -> None:
        assert errors.describe_op(op, position) == text


class Calling:
    inputs, outputs = ("x",), ("y",)

    def __init__(self, fn: object) -> None:
        self.fn = fn


class Asked:
    @property
    def fn(self) -> object:
        raise RuntimeError("nobody is to ask")


def standardise(x: object) -> object:
    return x


class Scale:
    def __call__(self, x: object) -> object:
        return x


class TestOpName:
    @pytest.mark.parametrize(
        ("op", "text"),
        [
            (ModelOp("x", "y"), "ModelOp"),
            (Calling(standardise), "Calling[standardise]"),
            (Calling(functools.partial(functools.partial(standardise))), "Calling[standardise]"),
            (Calling(max), "Calling[max]"),
            (Calling(Scale()), "Calling[Scale]"),
            (Calling(torch.nn.ReLU()), "Calling[ReLU]"),
            (Calling("x".upper), "Calling[upper]"),
            (Calling(lambda x: x), "Calling"),
            (Calling(functools.partial(lambda x: x)), "Calling"),
            (Calling(None), "Calling"),
            (Asked(), "Asked"),
            (3.5, "float"),
        ],
    )
    def test_text(self, op: object, text: str) -> None:
        assert errors.op_name(op) == text


class TestNearestName:
    @pytest.mark.parametrize(
        ("name", "candidates", "nearest"),
        [
            ("y_perd", ["x", "y", "y_pred"], "y_pred"),
            ("label", ["labels", "table"], "labels"),
            ("X", ["x", "image"], "x"),
            ("Y", ["y"], "y"),
            ("image", ["x", "y"], None),
            ("x", [], None),
            ("label", [1, None, "labels"], "labels"),
        ],
    )
    def test_nearest(self, name: str, candidates: list[object], nearest: str | None) -> None:
        assert errors.nearest_name(name, candidates) == nearest


class TestMissingKey:
    def test_is_a_key_error_that_reads_as_written(self) -> None:
        error = errors.missing_key(ModelOp("x", "y"), "x", ["image"], 1)
        assert isinstance(error, errors.MissingKeyError)
        assert isinstance(error, KeyError)
        assert str(error).startswith(
            "ModelOp (op 1, inputs ['x'], outputs ['y']) reads the key 'x'"
        )
        assert "['image']" in str(error)
        assert "Did you mean" not in str(error)

    def test_suggests_the_nearest_key_of_the_batch_and_of_ops(self) -> None:
        written = {"scores": "Op (op 0)", "image": "Op (op 1)", "y": "Op (op 2)"}
        there = ["image", "label", "store"]
        error = errors.missing_key(ModelOp("scoers"), "scoers", there, 3, written=written)
        del written["image"]
        assert f"{there} in the batch, ['scores', 'y'] from earlier ops" in str(error)
        assert "Did you mean 'scores', which Op (op 0) writes?" in str(error)

    def test_gives_the_reason_instead(self) -> None:
        error = errors.missing_key(ModelOp("x"), "x", ["x2"], reason="Op writes it later.")
        assert "['x2']. Op writes it later. Put the key" in str(error)

    def test_says_who_deleted_it(self) -> None:
        error = errors.missing_key(ModelOp("x"), "x", ["x2"], 3, deleted_by="Delete (op 1)")
        assert str(error).startswith("ModelOp (op 3, inputs ['x']) reads the key 'x'")
        assert "Delete (op 1) has deleted" in str(error)

    def test_says_what_the_reader_does(self) -> None:
        error = errors.missing_key(ModelOp(), "x", [], verb="slices")
        assert str(error).startswith("ModelOp slices the key 'x'")

    @pytest.mark.parametrize("copied", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
    def test_survives_copying(self, copied: object) -> None:
        error = errors.missing_key(ModelOp(), "x", [])
        twin = copied(error)  # type: ignore[operator]
        assert type(twin) is errors.MissingKeyError
        assert str(twin) == str(error)


class TestShown:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.5, "0.5"),
            ("a word", "'a word'"),
            (None, "None"),
            ([1, (2, "x")], "[1, (2, 'x')]"),
            (np.ones((100, 100)), "<ndarray of shape (100, 100), float64>"),
            (torch.ones(2, 3), "<Tensor of shape (2, 3), float32, cpu>"),
            (torch.tensor(3), "tensor(3)"),
            (
                {"x": torch.ones(2, dtype=torch.int64)},
                "{'x': <Tensor of shape (2,), int64, cpu>}",
            ),
            (list(range(1000)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
            (np.ndarray, "<class 'numpy.ndarray'>"),
        ],
    )
    def test_text(self, value: object, text: str) -> None:
        assert errors.shorten(value) == text

    def test_is_a_short_line(self) -> None:
        class Long:
            def __repr__(self) -> str:
                return "many\nlines\n" * 1000

        class Broken:
            def __repr__(self) -> str:
                raise ArithmeticError

        for value in (Long(), "word" * 1000, [torch.ones(9, 9)] * 1000, 10**1000, [[[[[["x"]]]]]]):
            text = errors.shorten(value)
            assert len(text) < 500
            assert "\n" not in text
        assert "Broken" in errors.shorten(Broken())


class TestAddNote:
    @pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
    def test_is_a_note(self) -> None:
        error = ValueError("wrong", 2)
        errors.add_note(error, "Raised by an op.")
        errors.add_note(error, "Raised by an op.")
        assert error.args == ("wrong", 2)
        assert error.__notes__ == ["Raised by an op."]

    def test_is_shown_below_the_text(self) -> None:
        error = ValueError("wrong")
        errors.add_note(error, "Raised by an op.")
        assert shown(error) == "wrong\nRaised by an op."

    @pytest.mark.parametrize(
        ("args", "noted"),
        [((), ("note",)), (("a", 1), ("a\nnote", 1)), ((1, "a"), (1, "a")), (("",), ("note",))],
    )
    def test_where_errors_have_no_notes(
        self, args: tuple[object, ...], noted: tuple[object, ...]
    ) -> None:
        class Python310Error(Exception):
            add_note = property()  # hides the method, as if there were none

        error = Python310Error(*args)
        errors.add_note(error, "note")
        assert error.args == noted
