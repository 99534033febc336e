"""Cutting along an axis, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.slicer import AxisSlicer

pytestmark = pytest.mark.fast

SHAPE = (2, 3, 4)
MAKERS = pytest.mark.parametrize("make", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
Maker = Callable[[Any], Any]


def data() -> np.ndarray[Any, Any]:
    return np.arange(24, dtype="float32").reshape(SHAPE)


@MAKERS
@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_cut_and_join(make: Maker, axis: int) -> None:
    batch = make(data())
    slicer = AxisSlicer(axis, slice="x")
    pieces = slicer._slice_batch(batch)
    assert len(pieces) == SHAPE[axis]
    for position, piece in enumerate(pieces):
        assert type(piece) is type(batch)
        np.testing.assert_array_equal(np.asarray(piece), np.take(data(), position, axis))
    joined = slicer._unslice_batch(tuple(pieces), key="x")
    assert type(joined) is type(batch)
    assert joined.dtype == batch.dtype
    np.testing.assert_array_equal(np.asarray(joined), data())


@MAKERS
def test_one_axis(make: Maker) -> None:
    batch = make(np.arange(3))
    slicer = AxisSlicer(0, slice="x")
    pieces = slicer._slice_batch(batch)
    assert [piece.shape for piece in pieces] == [()] * 3
    assert [type(piece) for piece in pieces] == [type(batch)] * 3
    assert slicer._unslice_batch(tuple(pieces), "x").tolist() == [0, 1, 2]


@MAKERS
def test_values_of_another_rank_are_joined(make: Maker) -> None:
    slices = tuple(make(np.full(2, value, dtype="float32")) for value in range(3))
    assert AxisSlicer(-1, slice="x")._unslice_batch(slices, "y").tolist() == [[0, 1, 2], [0, 1, 2]]
    assert AxisSlicer(0, slice="x")._unslice_batch(slices, "y").tolist() == [[0, 0], [1, 1], [2, 2]]
    scalars = tuple(make(np.array(value)) for value in range(3))
    assert AxisSlicer(-1, slice="x")._unslice_batch(scalars, "loss").tolist() == [0, 1, 2]


@MAKERS
def test_nothing_to_cut(make: Maker) -> None:
    assert AxisSlicer(0, slice="x").slice_batches((make(np.ones((0, 2))),)) == []


def test_an_op_may_write_into_a_slice() -> None:
    weight = torch.ones(3, requires_grad=True)
    piece = AxisSlicer(0, slice="x")._slice_batch(torch.ones(2, 3))[0]
    piece.mul_(weight).sum().backward()
    assert weight.grad is not None


def test_gradients_pass_through_joining() -> None:
    pieces = tuple(torch.ones(2, requires_grad=True) for _ in range(2))
    (
        AxisSlicer(0, slice="x")._unslice_batch(pieces, "x") * torch.tensor([[1.0], [3.0]])
    ).sum().backward()
    assert [piece.grad.tolist() for piece in pieces if piece.grad is not None] == [[1, 1], [3, 3]]


@pytest.mark.parametrize("axis", [3, -4])
def test_no_such_axis(axis: int) -> None:
    with pytest.raises(IndexError) as caught:
        AxisSlicer(axis, slice=["x", "y"])._slice_batch(torch.ones(SHAPE))
    assert str(caught.value) == (
        f"AxisSlicer cuts ['x', 'y'] along axis {axis}, but got data of shape (2, 3, 4), which has "
        "no such axis."
    )


def test_slices_of_too_few_axes() -> None:
    with pytest.raises(IndexError) as caught:
        AxisSlicer(2, slice="x")._unslice_batch((torch.tensor(1.0),), key="loss")
    assert str(caught.value) == (
        "AxisSlicer joins 'loss' along a new axis 2, but its slices have shape (), too few axes "
        "for that. Un-slice a value such as a loss with MeanUnslicer."
    )


def test_no_tensor() -> None:
    with pytest.raises(ValueError, match="Unrecognized") as caught:
        AxisSlicer(0, slice="x")._slice_batch(["a", "b"])
    assert str(caught.value) == (
        "Unrecognized tensor type list: expected a tensor of torch, tensorflow or numpy, but got "
        "['a', 'b']."
    )


def test_axis_must_be_an_int() -> None:
    axis: Any = 1.0
    with pytest.raises(AssertionError) as caught:
        AxisSlicer(axis, slice="x")
    assert (
        str(caught.value) == "The axis of an AxisSlicer must be an int, but got 1.0 of type float."
    )
