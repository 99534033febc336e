"""The base class of slicers."""

from __future__ import annotations

from typing import Any

import pytest

from fastnet.slicer import Slicer
from fastnet.slicer.slicer import forward_slicers, reverse_slicers, sanity_assert_slicers
from fastnet.types import is_slicer

pytestmark = pytest.mark.fast


class Letters(Slicer):
    """Cuts a string into its letters, and joins them."""

    def _slice_batch(self, batch: Any) -> list[Any]:
        return list(batch)

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return "".join(slices)


class OnlyCuts(Slicer):
    def _slice_batch(self, batch: Any) -> list[Any]:
        return list(batch)


class OnlyJoins(Slicer):
    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return "".join(slices)


class TestInit:
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
    def test_keys(self, arguments: dict[str, Any], slices: list[str], unslices: list[str]) -> None:
        slicer = Letters(**arguments)
        assert slicer.slice_inputs == slices
        assert slicer.unslice_inputs == unslices

    def test_mode_and_ds_id(self) -> None:
        slicer = Letters("x", mode="!train", ds_id=["a", "b"])
        assert slicer.mode == {"eval", "test", "infer"}
        assert slicer.ds_id == {"a", "b"}
        assert slicer.minibatch_size == 0
        assert is_slicer(slicer)

    def test_lists_are_copied(self) -> None:
        keys = ["x"]
        slicer = Letters(keys)
        keys.append("y")
        assert slicer.slice_inputs == slicer.unslice_inputs == ["x"]
        assert slicer.slice_inputs is not slicer.unslice_inputs

    @pytest.mark.parametrize(
        ("cls", "arguments", "error", "text"),
        [
            (
                Letters,
                {},
                ValueError,
                "Letters has nothing to do: give it keys to `slice` or to `unslice`.",
            ),
            (
                OnlyJoins,
                {"slice": "x"},
                NotImplementedError,
                "OnlyJoins is to slice ['x'], but does not define _slice_batch. Define it, or give "
                "the keys to `unslice` only.",
            ),
            (
                OnlyCuts,
                {"slice": "x"},
                NotImplementedError,
                "OnlyCuts is to un-slice ['x'], but does not define _unslice_batch. Define it, or "
                "pass unslice=None.",
            ),
            (
                Letters,
                {"slice": "x", "mode": "training"},
                AssertionError,
                "Unknown mode: 'training'. A mode is one of train, eval, test, infer, or one of "
                "them with a leading '!' to run in all the others.",
            ),
        ],
    )
    def test_errors(
        self, cls: type[Slicer], arguments: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error) as caught:
            cls(**arguments)
        assert str(caught.value) == text

    def test_half_a_slicer_does(self) -> None:
        assert OnlyCuts("x", unslice=None).slice_batches(("ab",)) == [("a",), ("b",)]
        assert OnlyJoins(unslice="x")._unslice_batch(("a", "b"), key="x") == "ab"

    def test_what_is_not_defined_says_so(self) -> None:
        with pytest.raises(NotImplementedError) as caught:
            OnlyJoins(unslice="x")._slice_batch("ab")
        assert str(caught.value) == "OnlyJoins must define _slice_batch."
        with pytest.raises(NotImplementedError) as caught:
            OnlyCuts("x", unslice=None)._unslice_batch(("a",), "x")
        assert str(caught.value) == "OnlyCuts must define _unslice_batch."


class TestSliceBatches:
    def test_several_keys(self) -> None:
        slicer = Letters(["x", "y"])
        assert slicer.slice_batches(("ab", "cd")) == [("a", "c"), ("b", "d")]
        assert slicer.minibatch_size == 2

    def test_unequal_counts(self) -> None:
        slicer = Letters(["x", "y"])
        with pytest.raises(AssertionError) as caught:
            slicer.slice_batches(("abc", "de"))
        assert str(caught.value) == (
            "Letters cut its keys into different numbers of slices: {'x': 3, 'y': 2}. Keys that "
            "are cut together must give equally many; cut the others with another slicer, or not "
            "at all."
        )


def test_the_functions_of_the_kernel_are_here() -> None:
    slicers = [Letters("x", unslice=["x", "z"])]
    sanity_assert_slicers(slicers)
    batch = {"x": "ab", "y": 1}
    minibatches = forward_slicers(slicers, data=batch)
    assert minibatches == [{"x": "a", "y": 1}, {"x": "b", "y": 1}]
    for minibatch in minibatches:
        minibatch["z"] = minibatch["x"].upper()
    joined = reverse_slicers(slicers, data=minibatches, original_data=batch)
    assert joined == {"x": "ab", "y": 1, "z": "AB"}
