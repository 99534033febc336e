"""Tests of slicing a batch into minibatches and joining them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from fastnet.errors import MissingKeyError
from tests.kernel.ops import Nothing, Slicer, shown
from tests.missing_keys import missing
from tests.reference import Kernel

pytestmark = pytest.mark.fast


class Other(Slicer):
    """A slicer with another name in errors."""


class Broken(Slicer):
    def slice_batches(self, batches: tuple[Any, ...]) -> Any:
        raise TypeError("cannot be cut")

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        raise ValueError("cannot be joined")


class Pieces(Slicer):
    """Returns given pieces."""

    def __init__(self, slices: list[str], pieces: Any) -> None:
        super().__init__(slices)
        self.pieces = pieces

    def slice_batches(self, batches: tuple[Any, ...]) -> Any:
        return self.pieces


class TestCheckSlicers:
    def test_two_cut_the_same_keys(self, kernel: Kernel) -> None:
        slicers = [Slicer(["z", "x", "y"]), Slicer(["v"]), Other(["w", "y", "x"])]
        with pytest.raises(ValueError, match=r" slice the same keys: \['x', 'y'\], Other"):
            kernel.check_slicers(slicers)

    @pytest.mark.parametrize(
        "slicers", [[Slicer([], ["b", "a"])], [Slicer([], ["b"]), Slicer([], ["a"])]]
    )
    def test_joining_without_cutting(self, kernel: Kernel, slicers: list[Slicer]) -> None:
        with pytest.raises(ValueError, match=r"\['a', 'b'\].*no active slicer.*`slice`.*mode"):
            kernel.check_slicers(slicers)


class TestForwardSlicers:
    def test_cuts_and_shares(self, kernel: Kernel) -> None:
        shared = Nothing()
        data = {"x": [1, 2, 3], "shared": shared, "y": [4, 5, 6]}
        minibatches = kernel.forward_slicers([Slicer(["x", "y"])], data)
        assert minibatches == [
            {"x": [1], "shared": shared, "y": [4]},
            {"x": [2], "shared": shared, "y": [5]},
            {"x": [3], "shared": shared, "y": [6]},
        ]
        assert all(minibatch["shared"] is shared for minibatch in minibatches)

    def test_a_missing_key(self, kernel: Kernel) -> None:
        with pytest.raises(MissingKeyError) as caught:
            kernel.forward_slicers([Slicer(["x", "label"])], {"x": [1], "labels": [2]})
        assert shown(caught.value) == (
            missing("Slicer", "label", ["labels", "x"], "labels", verb="slices")
        )

    def test_a_slicer_that_raises(self, kernel: Kernel) -> None:
        with pytest.raises(TypeError, match="cannot be cut") as caught:
            kernel.forward_slicers([Slicer(["x"]), Broken(["y", "z"])], {"x": [], "y": 1, "z": 2})
        assert "Raised by Broken while it sliced ['y', 'z']" in shown(caught.value)

    @pytest.mark.parametrize(("piece", "count"), [([1], "1 value"), ((), "0 values")])
    def test_pieces_with_too_few_values(self, kernel: Kernel, piece: Any, count: str) -> None:
        with pytest.raises(ValueError, match=rf"Pieces.*\['x', 'y'\].*piece 1 has {count}"):
            kernel.forward_slicers([Pieces(["x", "y"], [(1, 2), piece])], {"x": 1, "y": 2})


class TestReverseSlicers:
    def test_joined_and_other_keys(self, kernel: Kernel) -> None:
        original = {"x": [1, 2], "other": "original"}
        data = [
            {"x": [1], "other": "first", "y": [3], "loss": 0.5},
            {"x": [2], "other": "second", "y": [4], "loss": 0.7},
        ]
        batch = kernel.reverse_slicers([Slicer(["x"], ["y"])], data, original)
        # y is joined, x and other are those of the batch, loss is that of the first minibatch.
        assert batch == {"y": [3, 4], "x": [1, 2], "other": "original", "loss": 0.5}
        assert batch["x"] is original["x"]

    @pytest.mark.parametrize("data", [[], ()])
    def test_no_minibatches(self, kernel: Kernel, data: Any) -> None:
        batch = {"x": [], "w": 1}
        result = kernel.reverse_slicers([Slicer(["x"], ["x", "y"])], data, batch)
        assert result == batch
        assert result is not batch

    def test_a_slicer_that_raises(self, kernel: Kernel) -> None:
        with pytest.raises(ValueError, match="cannot be joined") as caught:
            kernel.reverse_slicers([Broken([], ["x"])], [{"x": 1}], {})
        assert "Raised by Broken while it un-sliced 'x'" in shown(caught.value)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts references")
def test_no_reference_is_leaked(kernel: Kernel) -> None:
    value, shared = [object(), object(), object()], Nothing()
    slicer, broken = Slicer(["x"], ["x", "absent"]), Broken(["x"], ["x"])
    data = {"x": value, "shared": shared}

    def work(times: int) -> None:
        for _ in range(times):
            kernel.check_slicers([slicer])
            minibatches = kernel.forward_slicers([slicer], data)
            kernel.reverse_slicers([slicer], minibatches, data)
            for failing in (
                lambda: kernel.forward_slicers([slicer, broken], data),
                lambda: kernel.forward_slicers([Slicer(["absent"])], data),
                lambda: kernel.forward_slicers([slicer, Slicer(["x"], size=2)], data),
                lambda minibatches=minibatches: kernel.reverse_slicers([broken], minibatches, data),
            ):
                try:
                    failing()
                except (TypeError, KeyError, ValueError):
                    continue
                raise AssertionError("no error was raised")

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(owned) for owned in (value, shared, slicer, broken, value[0])]

    work(10)
    before, objects = counts(), len(gc.get_objects())
    work(2000)
    assert counts() == before
    assert len(gc.get_objects()) - objects < 20
