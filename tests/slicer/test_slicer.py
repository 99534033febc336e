"""The base class of slicers."""

from __future__ import annotations

from typing import Any

import pytest

from fastnet.slicer import Slicer

pytestmark = pytest.mark.fast


class Cuts(Slicer):
    def _slice_batch(self, batch: Any) -> list[Any]:
        return list(batch)


class Joins(Slicer):
    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return "".join(slices)


class Letters(Cuts, Joins):
    """Cuts a string into its letters, and joins them."""


@pytest.mark.parametrize(
    ("arguments", "slices", "unslices"),
    [
        ({"slice": "x"}, ["x"], ["x"]),
        ({"slice": ["x", "y"]}, ["x", "y"], ["x", "y"]),
        ({"slice": "x", "unslice": None}, ["x"], []),
        ({"slice": "x", "unslice": []}, ["x"], []),
        ({"slice": "x", "unslice": "y"}, ["x"], ["y"]),
        ({"unslice": ["y"]}, [], ["y"]),
    ],
)
def test_keys(arguments: dict[str, Any], slices: list[str], unslices: list[str]) -> None:
    slicer = Letters(**arguments)
    assert (slicer.slice_inputs, slicer.unslice_inputs) == (slices, unslices)


def test_modes_and_datasets() -> None:
    slicer = Letters("x", mode="!train", ds_id=["a", "b"])
    assert slicer.mode == {"eval", "test", "infer"}
    assert slicer.ds_id == {"a", "b"}


@pytest.mark.parametrize(
    ("cls", "arguments", "error", "text"),
    [
        (Letters, {}, ValueError, "Letters.*`slice`.*`unslice`"),
        (Joins, {"slice": "x"}, NotImplementedError, r"Joins.*\['x'\].*_slice_batch"),
        (Cuts, {"slice": "x"}, NotImplementedError, r"Cuts.*\['x'\].*_unslice_batch.*=None"),
        (Letters, {"slice": "x", "mode": "training"}, AssertionError, "Letters.*'training'"),
        (Letters, {"slice": 3}, TypeError, "Letters.*3 of type int"),
    ],
)
def test_invalid_arguments(
    cls: type[Slicer], arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        cls(**arguments)


def test_one_method_is_enough() -> None:
    cuts, joins = Cuts("x", unslice=None), Joins(unslice="x")
    assert cuts.slice_batches(("ab",)) == [("a",), ("b",)]
    assert joins._unslice_batch(("a", "b"), key="x") == "ab"
    with pytest.raises(NotImplementedError, match=r"Joins.*_slice_batch"):
        joins._slice_batch("ab")
    with pytest.raises(NotImplementedError, match=r"Cuts.*_unslice_batch"):
        cuts._unslice_batch(("a",), "x")
