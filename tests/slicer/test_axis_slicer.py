"""Slicing along an axis, compared with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastnet.slicer import AxisSlicer
from tests.slicer.frameworks import FRAMEWORKS, Maker, dtype_of

pytestmark = pytest.mark.fast

DATA = np.arange(24).reshape(2, 3, 4)


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_slice_and_unslice(make: Maker, axis: int, dtype: str) -> None:
    batch = make(DATA.astype(dtype))
    slicer = AxisSlicer(axis, slice="x")
    pieces = slicer._slice_batch(batch)
    assert len(pieces) == DATA.shape[axis]
    for index, piece in enumerate(pieces):
        assert type(piece) is type(batch)
        np.testing.assert_array_equal(np.asarray(piece), np.take(DATA, index, axis))
    joined = slicer._unslice_batch(tuple(pieces), key="x")
    assert (type(joined), dtype_of(joined)) == (type(batch), dtype)
    np.testing.assert_array_equal(np.asarray(joined), DATA)


@FRAMEWORKS
def test_a_single_axis(make: Maker) -> None:
    slicer = AxisSlicer(0, slice="x")
    pieces = slicer._slice_batch(make(np.arange(3)))
    assert [tuple(piece.shape) for piece in pieces] == [()] * 3
    assert np.asarray(slicer._unslice_batch(tuple(pieces), "x")).tolist() == [0, 1, 2]
    assert slicer.slice_batches((make(np.ones((0, 2))),)) == []


@FRAMEWORKS
@pytest.mark.parametrize(("axis", "shape"), [(-1, (2,)), (0, (2,)), (-1, ())])
def test_keys_of_another_rank_are_stacked(make: Maker, axis: int, shape: tuple[int, ...]) -> None:
    arrays = [np.full(shape, value, dtype="float32") for value in range(3)]
    joined = AxisSlicer(axis, slice="x")._unslice_batch(tuple(map(make, arrays)), "y")
    np.testing.assert_array_equal(np.asarray(joined), np.stack(arrays, axis))


def test_gradients_pass_through_slices_and_joined_values() -> None:
    slicer = AxisSlicer(0, slice="x")
    weight = torch.ones(3, requires_grad=True)
    # An op may write to a slice.
    slicer._slice_batch(torch.ones(2, 3))[0].mul_(weight).sum().backward()
    assert weight.grad is not None
    pieces = tuple(torch.ones(2, requires_grad=True) for _ in range(2))
    (slicer._unslice_batch(pieces, "x") * torch.tensor([[1.0], [3.0]])).sum().backward()
    assert [piece.grad.tolist() for piece in pieces if piece.grad is not None] == [[1, 1], [3, 3]]


@FRAMEWORKS
@pytest.mark.parametrize("axis", [3, -4])
def test_a_missing_axis(make: Maker, axis: int) -> None:
    with pytest.raises(IndexError, match=rf"AxisSlicer.*\['x', 'y'\].*axis {axis}.*\(2, 3, 4\)"):
        AxisSlicer(axis, slice=["x", "y"])._slice_batch(make(DATA))


@FRAMEWORKS
def test_slices_with_too_few_axes(make: Maker) -> None:
    with pytest.raises(IndexError, match=r"AxisSlicer.*'loss'.*axis 2.*MeanUnslicer"):
        AxisSlicer(2, slice="x")._unslice_batch((make(np.array(1.0)),), key="loss")


def test_invalid_values() -> None:
    axis: Any = 1.0
    with pytest.raises(AssertionError, match=r"AxisSlicer must be an int, but got 1\.0"):
        AxisSlicer(axis, slice="x")
    with pytest.raises(ValueError, match=r"tensor type list.*torch, tensorflow or numpy"):
        AxisSlicer(0, slice="x")._slice_batch(["a", "b"])
