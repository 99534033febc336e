"""Cutting with a sliding window, and joining what was cut."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fastnet.slicer import SlidingSlicer
from fastnet.slicer.slicer import forward_slicers, reverse_slicers

pytestmark = pytest.mark.fast

MAKERS = pytest.mark.parametrize("make", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
Maker = Callable[[Any], Any]
ROW = np.arange(5, dtype="float32").reshape(1, 5)


def cut(slicer: SlidingSlicer, batch: Any) -> list[Any]:
    return [piece for (piece,) in slicer.slice_batches((batch,))]


class TestCutting:
    @MAKERS
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, [[0, 1], [2, 3]]),
            ({"pad_mode": "partial"}, [[0, 1], [2, 3], [4]]),
            ({"pad_mode": "constant", "pad_val": -1}, [[0, 1], [2, 3], [4, -1]]),
            ({"pad_mode": "nopad"}, [[0, 1], [2, 3], [3, 4]]),
            ({"strides": 1}, [[0, 1], [1, 2], [2, 3], [3, 4]]),
            ({"strides": [0, 1]}, [[0, 1], [1, 2], [2, 3], [3, 4]]),
            ({"strides": (0, 3)}, [[0, 1], [3, 4]]),
            ({"strides": 4, "pad_mode": "partial"}, [[0, 1], [4]]),
        ],
    )
    def test_row(self, make: Maker, arguments: dict[str, Any], expected: list[list[int]]) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", **arguments)
        pieces = cut(slicer, make(ROW))
        assert [piece.tolist() for piece in pieces] == [[row] for row in expected]
        assert {type(piece) for piece in pieces} == {type(make(ROW))}
        assert slicer.minibatch_size == len(expected)

    @MAKERS
    @pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
    def test_mirror(self, make: Maker, dtype: str) -> None:
        batch = np.array([[[0, 1, 2, 3, 1]]]).astype(dtype)
        slicer = SlidingSlicer([-1, -1, 4], pad_mode="mirror", slice="x")
        pieces = cut(slicer, make(batch))
        expected = np.array([[0, 1, 2, 3], [1, 3, 2, 1]]).astype(dtype)
        assert [piece.tolist() for piece in pieces] == [[[row]] for row in expected.tolist()]
        assert pieces[1].dtype == make(batch).dtype

    def test_mirror_of_large_ints_is_exact(self) -> None:
        large = 2**53 + 1
        batch = torch.tensor([[[large, 1, 2, 3, large + 2]]])
        pieces = cut(SlidingSlicer([-1, -1, 4], pad_mode="mirror", slice="x"), batch)
        assert pieces[1].tolist() == [[[large + 2, 3, 2, 1]]]

    def test_mirror_of_many_axes(self) -> None:
        shape = (1, 1, 2, 2, 2, 3)
        batch = torch.arange(24.0).reshape(shape)
        slicer = SlidingSlicer([-1] * 5 + [2], pad_mode="mirror", slice="x")
        expected = np.pad(batch.numpy(), [(0, 0)] * 5 + [(0, 1)], mode="reflect")[..., 2:4]
        np.testing.assert_array_equal(cut(slicer, batch)[1].numpy(), expected)

    @MAKERS
    def test_image(self, make: Maker) -> None:
        image = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
        pieces = cut(SlidingSlicer([-1, -1, 2, 3], slice="x"), make(image))
        expected = [
            image[:, :, i : i + 2, j : j + 3] for i, j in product(range(0, 4, 2), range(0, 6, 3))
        ]
        assert len(pieces) == 4
        for piece, wanted in zip(pieces, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(piece), wanted)

    @MAKERS
    def test_windows_of_one(self, make: Maker) -> None:
        volume = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
        slicer = SlidingSlicer([-1, 1, 1], slice="x", squeeze_window=True)
        pieces = cut(slicer, make(volume))
        assert [piece.tolist() for piece in pieces] == [
            volume[:, i, j].tolist() for i, j in product(range(3), range(4))
        ]
        joined = slicer._unslice_batch(tuple(pieces), "x")
        np.testing.assert_array_equal(np.asarray(joined), volume)

    @MAKERS
    def test_a_whole_axis_is_not_squeezed(self, make: Maker) -> None:
        slicer = SlidingSlicer([1, 2], strides=[0, 1], slice="x", squeeze_window=True)
        batch = np.arange(6.0, dtype="float32").reshape(2, 3)
        pieces = cut(slicer, make(batch))
        assert [tuple(piece.shape) for piece in pieces] == [(2, 2), (2, 2)]
        joined = slicer._unslice_batch(tuple(pieces), "x")
        np.testing.assert_array_equal(np.asarray(joined), batch)

    def test_the_batch_is_not_changed(self) -> None:
        batch = torch.arange(5.0).reshape(1, 5)
        before = batch.clone()
        slicer = SlidingSlicer([-1, 2], pad_mode="constant", slice="x")
        pieces = cut(slicer, batch)
        slicer._unslice_batch(tuple(pieces), "x")
        assert torch.equal(batch, before)


class TestJoining:
    @MAKERS
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"pad_val": -1}, [0, 1, 2, 3, -1]),
            ({"pad_mode": "partial"}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "constant", "pad_val": 9}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "nopad"}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "nopad", "unslice_mode": "sum"}, [0, 1, 2, 6, 4]),
            ({"strides": 1}, [0, 1, 2, 3, 4]),
            ({"strides": 1, "unslice_mode": "sum"}, [0, 2, 4, 6, 4]),
            ({"strides": 3, "pad_val": 7}, [0, 1, 7, 3, 4]),
            ({"strides": 3, "pad_val": 7, "unslice_mode": "sum"}, [0, 1, 7, 3, 4]),
        ],
    )
    def test_row(self, make: Maker, arguments: dict[str, Any], expected: list[int]) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", **arguments)
        joined = slicer._unslice_batch(tuple(cut(slicer, make(ROW))), key="x")
        assert joined.tolist() == [expected]
        assert type(joined) is type(make(ROW))

    @MAKERS
    def test_overlaps_are_averaged(self, make: Maker) -> None:
        slicer = SlidingSlicer([-1, 2], strides=1, slice="x")
        cut(slicer, make(np.zeros((1, 3), dtype="float32")))
        slices = tuple(make(np.array([row], dtype="float32")) for row in ([1, 2], [4, 8]))
        assert slicer._unslice_batch(slices, "y").tolist() == [[1, 3, 8]]

    @MAKERS
    @pytest.mark.parametrize(
        ("mode", "dtype", "joined"),
        [
            ("avg", "int64", "float32"),
            ("avg", "float64", "float32"),
            ("sum", "int64", "int64"),
            ("sum", "float64", "float64"),
        ],
    )
    def test_type(self, make: Maker, mode: str, dtype: str, joined: str) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", unslice_mode=mode)
        pieces = cut(slicer, make(ROW.astype(dtype)))
        result = slicer._unslice_batch(tuple(pieces), "x")
        assert str(result.dtype).removeprefix("torch.") == joined

    @given(data=st.data())
    def test_what_was_cut_is_put_back(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(1, 3))
        shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
        window = [data.draw(st.sampled_from([-1, *range(1, size + 1)])) for size in shape]
        strides = [0 if w == -1 else data.draw(st.integers(1, w)) for w in window]
        pad_mode = data.draw(st.sampled_from(["partial", "constant", "nopad", "mirror"]))
        if pad_mode == "mirror":
            # there must be enough to mirror
            assume(rank > 2)
            assume(all(w < size for size, w in zip(shape[2:], window[2:], strict=True)))
        batch = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        slicer = SlidingSlicer(
            window, strides, pad_mode=pad_mode, slice="x", squeeze_window=data.draw(st.booleans())
        )
        for value in (batch, torch.from_numpy(batch)):
            pieces = cut(slicer, value)
            joined = slicer._unslice_batch(tuple(pieces), "x")
            np.testing.assert_array_equal(np.asarray(joined), batch)

    def test_gradients_pass(self) -> None:
        slicer = SlidingSlicer([-1, 2], strides=1, slice="x")
        cut(slicer, torch.zeros(1, 3))
        slices = tuple(torch.ones(1, 2, requires_grad=True) for _ in range(2))
        slicer._unslice_batch(slices, "y").sum().backward()
        assert [piece.grad.tolist() for piece in slices if piece.grad is not None] == [
            [[1.0, 0.5]],
            [[0.5, 1.0]],
        ]


class TestShapes:
    def test_a_given_shape(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=(1, 4))
        assert slicer.static_unslice_shape
        assert slicer.unslice_shape == [1, 4]
        slices = (torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
        assert slicer._unslice_batch(slices, "y").tolist() == [[1, 2, 3, 4]]

    @MAKERS
    def test_lengths_that_are_left_open(self, make: Maker) -> None:
        slicer = SlidingSlicer(
            [-1, -1, 1, 2],
            slice="x",
            unslice="y",
            unslice_shape=[-1, -1, 3, 4],
            squeeze_window=True,
        )
        for batch, channels in ((4, 1), (1, 3), (2, 2)):
            images = np.random.default_rng(0).random((batch, channels, 3, 4), "float32")
            pieces = tuple(
                make(images[:, :, row, at : at + 2]) for row in range(3) for at in (0, 2)
            )
            np.testing.assert_array_equal(slicer._unslice_batch(pieces, "y"), images)

    def test_the_shape_that_was_cut(self) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x")
        assert not slicer.static_unslice_shape
        assert slicer.unslice_shape is None
        cut(slicer, torch.zeros(3, 4))
        assert slicer.unslice_shape == [3, 4]
        cut(slicer, torch.zeros(2, 6))
        assert slicer.unslice_shape == [2, 6]

    def test_each_key_has_its_own_shape(self) -> None:
        slicer = SlidingSlicer([-1, -1, 2], slice=["image", "mask"], unslice=["image", "mask", "y"])
        image, mask = torch.rand(2, 3, 4), torch.rand(2, 1, 4)
        batch = {"image": image, "mask": mask}
        minibatches = forward_slicers([slicer], batch)
        for minibatch in minibatches:
            minibatch["y"] = minibatch["mask"] * 2
        joined = reverse_slicers([slicer], minibatches, batch)
        assert torch.equal(joined["image"], image)
        assert torch.equal(joined["mask"], mask)
        assert torch.equal(joined["y"], mask * 2)

    def test_a_slice_alone_sets_the_shape_too(self) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x")
        cut(slicer, torch.zeros(1, 8))
        pieces = slicer._slice_batch(torch.zeros(1, 4))
        assert tuple(slicer._unslice_batch(tuple(pieces), "x").shape) == (1, 4)

    def test_two_threads_do_not_disturb_each_other(self) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x")
        pieces = cut(slicer, torch.ones(1, 4))

        def other() -> None:
            cut(slicer, torch.ones(1, 6))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert tuple(slicer._unslice_batch(tuple(pieces), "x").shape) == (1, 4)

    def test_slicers_are_freed_copied_and_pickled(self) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x")
        cut(slicer, torch.ones(1, 4))
        for again in (copy.deepcopy(slicer), pickle.loads(pickle.dumps(slicer))):
            assert len(cut(again, torch.ones(1, 4))) == 2
        reference = weakref.ref(slicer)
        del slicer
        gc.collect()
        assert reference() is None


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (
                {"window_size": []},
                "SlidingSlicer needs a window_size: a length for each axis of the data, or -1.",
            ),
            (
                {"window_size": [-1, 0]},
                "Each length of a window_size must be a positive int, or -1 for an axis that is "
                "not cut, but got 0 in [-1, 0].",
            ),
            (
                {"window_size": [2.0]},
                "Each length of a window_size must be a positive int, or -1 for an axis that is "
                "not cut, but got 2.0 in [2.0].",
            ),
            (
                {"window_size": [-1, 2], "strides": [1]},
                "strides and window_size must have the same number of axes, but got [1] and "
                "[-1, 2].",
            ),
            (
                {"window_size": [2], "strides": [-1]},
                "Each stride must be an int of at least 0, but got -1 in [-1].",
            ),
            (
                {"window_size": [2], "strides": ["a"]},
                "Each stride must be an int of at least 0, but got 'a' in ['a'].",
            ),
            (
                {"window_size": [2], "pad_mode": "reflect"},
                "pad_mode must be one of 'drop', 'partial', 'constant', 'nopad', 'mirror', but got "
                "'reflect'.",
            ),
            (
                {"window_size": [-1, 2], "pad_mode": "mirror"},
                "pad_mode 'mirror' leaves the first two axes, batch and channel, as they are, so "
                "it needs a window_size of at least 3 axes, but got [-1, 2].",
            ),
            (
                {"window_size": [2], "unslice_mode": "mean"},
                "unslice_mode must be one of 'sum', 'avg', but got 'mean'.",
            ),
            (
                {"window_size": [2], "unslice_shape": (4, 4)},
                "unslice_shape and window_size must have the same number of axes, but got [4, 4] "
                "and [2].",
            ),
            (
                {"window_size": [-1, 2], "unslice_shape": (-1, -1)},
                "Each length of an unslice_shape must be a positive int, or -1 for an axis that is "
                "not cut, but got -1 in [-1, -1], for windows of [-1, 2].",
            ),
            (
                {"window_size": [-1, 2], "unslice_shape": (0, 4)},
                "Each length of an unslice_shape must be a positive int, or -1 for an axis that is "
                "not cut, but got 0 in [0, 4], for windows of [-1, 2].",
            ),
            (
                {"window_size": [2], "slice": None, "unslice": "y"},
                "SlidingSlicer is to un-slice ['y'] but slices nothing, so it cannot see what "
                "shape to restore. Give it keys to `slice`, or an unslice_shape.",
            ),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            SlidingSlicer(**{"slice": "x", **arguments})
        assert str(caught.value) == text

    def test_rank(self) -> None:
        with pytest.raises(ValueError, match="axes") as caught:
            SlidingSlicer([-1, 2], slice="x")._slice_batch(torch.ones(2, 3, 4))
        assert str(caught.value) == (
            "SlidingSlicer cuts ['x'] with a window of 2 axes, [-1, 2], but got data of 3 axes, of "
            "shape [2, 3, 4]. Give the window a length for each axis of the data, or -1."
        )

    def test_nothing_was_cut(self) -> None:
        with pytest.raises(AssertionError) as caught:
            SlidingSlicer([-1, 2], slice="x")._unslice_batch((torch.ones(1, 2),), key="x")
        assert str(caught.value) == (
            "SlidingSlicer cannot un-slice 'x', because it has not sliced anything in this thread, "
            "and has no unslice_shape. Slice a batch first, or give it an unslice_shape."
        )

    def test_wrong_number_of_slices(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[1, 6])
        with pytest.raises(AssertionError) as caught:
            slicer._unslice_batch((torch.ones(1, 2),), key="y")
        assert str(caught.value) == (
            "SlidingSlicer cannot un-slice 'y': a shape of [1, 6] has 3 windows of size [-1, 2] "
            "with strides [0, 2], but there are 1 slices."
        )

    @MAKERS
    def test_slices_that_do_not_fit(self, make: Maker) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[1, 4])
        slices = tuple(make(np.ones((1, 3), dtype="float32")) for _ in range(2))
        with pytest.raises(ValueError, match="fit") as caught:
            slicer._unslice_batch(slices, key="y")
        assert str(caught.value) == (
            "SlidingSlicer cannot un-slice 'y': a slice of shape [1, 3] does not fit into its "
            "window of shape [1, 2], in data of shape [1, 4]. Give the slicer the unslice_shape of "
            "this key, or cut a key of its shape."
        )

    @MAKERS
    @pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2,)])
    def test_slices_that_would_be_repeated(self, make: Maker, shape: tuple[int, ...]) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[2, 4])
        slices = tuple(make(np.ones(shape, dtype="float32")) for _ in range(2))
        with pytest.raises(ValueError, match="fit") as caught:
            slicer._unslice_batch(slices, key="y")
        assert str(caught.value) == (
            f"SlidingSlicer cannot un-slice 'y': a slice of shape {list(shape)} does not fit into "
            "its window of shape [2, 2], in data of shape [2, 4]. Give the slicer the "
            "unslice_shape of this key, or cut a key of its shape."
        )

    def test_pieces_of_other_axes_than_those_left_open(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[-1, 4])
        with pytest.raises(ValueError, match="pieces of 2 axes") as caught:
            slicer._unslice_batch((torch.ones(2), torch.ones(2)), key="y")
        assert str(caught.value) == (
            "SlidingSlicer joins pieces of 2 axes, by its unslice_shape [-1, 4], but got one of "
            "shape [2]."
        )

    def test_other_errors_of_the_framework_pass(self) -> None:
        slicer = SlidingSlicer([2], unslice="y", unslice_shape=[4], unslice_mode="sum")
        slices = (torch.ones(2, dtype=torch.int64), torch.ones(2))
        with pytest.raises(RuntimeError, match="can't be cast"):
            slicer._unslice_batch(slices, key="y")
