"""Tests of slicing a batch into minibatches and joining them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from tests.kernel.ops import Nothing, Slicer, shown
from tests.reference import Kernel, load

pytestmark = pytest.mark.fast


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


class TestForwardSlicers:
    def test_a_slicer_that_raises(self, kernel: Kernel) -> None:
        with pytest.raises(TypeError, match="cannot be cut") as caught:
            kernel.forward_slicers([Slicer(["x"]), Broken(["y", "z"])], {"x": [], "y": 1, "z": 2})
        assert "Raised by Broken while it sliced ['y', 'z']" in shown(caught.value)

    @pytest.mark.parametrize(("piece", "count"), [([1], "1 value"), ((), "0 values")])
    def test_slices_with_too_few_values_raise(self, kernel: Kernel, piece: Any, count: str) -> None:
        with pytest.raises(ValueError, match=rf"Pieces.*\['x', 'y'\].*slice 1 has {count}"):
            kernel.forward_slicers([Pieces(["x", "y"], [(1, 2), piece])], {"x": 1, "y": 2})

    def test_values_beyond_keys_are_left_out(self, kernel: Kernel) -> None:
        assert kernel.forward_slicers([Pieces(["x"], [(1, 2)])], {"x": 3}) == [{"x": 1}]


class TestReverseSlicers:
    @pytest.mark.parametrize("data", [[], ()])
    def test_no_minibatches_return_original_batch(self, kernel: Kernel, data: Any) -> None:
        batch = {"x": [], "w": 1}
        result = kernel.reverse_slicers([Slicer(["x"], ["x", "y"])], data, batch)
        assert result == batch
        assert result is not batch

    def test_a_slicer_that_raises(self, kernel: Kernel) -> None:
        with pytest.raises(ValueError, match="cannot be joined") as caught:
            kernel.reverse_slicers([Broken([], ["x"])], [{"x": 1}], {})
        assert "Raised by Broken while it unsliced 'x'" in shown(caught.value)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts references")
def test_no_reference_is_leaked() -> None:
    kernel = load("compiled")
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
