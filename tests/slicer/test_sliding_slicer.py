"""Slicing with a sliding window, and joining."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fastnet.slicer import SlidingSlicer
from fastnet.slicer.slicer import forward_slicers, reverse_slicers
from fastnet.slicer.sliding_slicer import tile
from tests.slicer.frameworks import FRAMEWORKS, Maker, dtype_of

pytestmark = pytest.mark.fast

ROW = np.arange(5, dtype="float32").reshape(1, 5)
PAD_MODES = ["drop", "partial", "constant", "nopad", "mirror"]


def cut(slicer: SlidingSlicer, batch: Any) -> list[Any]:
    return [piece for (piece,) in slicer.slice_batches((batch,))]


def there_and_back(slicer: SlidingSlicer, batch: Any) -> Any:
    return slicer._unslice_batch(tuple(cut(slicer, batch)), key="x")


class TestWindows:
    @staticmethod
    def place(size: int, length: int, stride: int, pad_mode: str) -> list[tuple[int, int]]:
        """Place windows along one axis until one reaches the end, as (start, stop)."""
        windows = []
        start = 0
        while start < size:
            stop = start + length
            if stop <= size or pad_mode in ("constant", "mirror"):
                windows.append((start, stop))
            elif pad_mode == "partial":
                windows.append((start, size))
            elif pad_mode == "nopad":
                windows.append((size - length, size))
            if stop >= size:
                return windows
            start += stride
        return windows

    @given(
        st.integers(2, 12), st.integers(1, 8), st.integers(1, 11), st.sampled_from(PAD_MODES[:4])
    )
    def test_one_axis(self, size: int, length: int, stride: int, pad_mode: str) -> None:
        assume(stride < size)
        assume(pad_mode not in ("nopad", "drop") or length <= size)
        windows = self.place(size, length, stride, pad_mode)
        tiling = tile((size,), (length,), (stride,), pad_mode)
        end = size + tiling.padding[0]
        assert [row.indices(end)[:2] for (row,) in tiling.windows] == windows
        needed = windows[-1][1] if pad_mode == "constant" else size
        assert end == max(needed, size)
        counts = [sum(a <= i < b for a, b in windows) for i in range(size)]
        (coverage,) = tiling.coverage
        assert (coverage is None) == (set(counts) == {1})
        assert coverage is None or coverage.tolist() == counts

    @pytest.mark.parametrize("pad_mode", PAD_MODES)
    def test_short_axes(self, pad_mode: str) -> None:
        assert tile((0,), (2,), (2,), pad_mode).windows == ((slice(None),),)
        if pad_mode != "drop":
            tiling = tile((1, 1, 4), (-1, -1, 5), (0, 0, 4), pad_mode)
            assert tiling.windows == ((slice(None),) * 3,)
            assert tiling.padding[2] == (pad_mode in ("constant", "mirror"))

    def test_mirroring_does_not_pad_batch_and_channel(self) -> None:
        shape, window = (3, 3, 3), (2, 2, 2)
        assert tile(shape, window, window, "mirror").padding == (0, 0, 1)
        assert tile(shape, window, window, "mirror", mirrored_from=0).padding == (1, 1, 1)

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            *(
                (((2, 4), (-1, 5), (0, stride), "drop"), ValueError, "axis 1.*'drop'|'drop'.*1")
                for stride in (1, 3, 4, 5, 9)
            ),
            (((2, 4), (-1, 5), (0, 3), "nopad"), AssertionError, "'nopad'.*axis 1"),
            (((1, 1, 3), (-1, -1, 6), (0, 0, 2), "mirror"), ValueError, "'mirror'.*axis 2.*not 3"),
        ],
    )
    def test_windows_that_do_not_fit(
        self, arguments: Any, error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error, match=text) as caught:
            tile(*arguments)
        for part in (arguments[0], arguments[1]):
            assert str(list(part)) in str(caught.value)


class TestSlicing:
    @FRAMEWORKS
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, [[0, 1], [2, 3]]),
            ({"pad_mode": "partial"}, [[0, 1], [2, 3], [4]]),
            ({"pad_mode": "constant", "pad_val": -1}, [[0, 1], [2, 3], [4, -1]]),
            ({"pad_mode": "nopad"}, [[0, 1], [2, 3], [3, 4]]),
            ({"strides": 1}, [[0, 1], [1, 2], [2, 3], [3, 4]]),
            ({"strides": (0, 3)}, [[0, 1], [3, 4]]),
            ({"strides": 4, "pad_mode": "partial"}, [[0, 1], [4]]),
        ],
    )
    def test_a_row(self, make: Maker, arguments: dict[str, Any], expected: Any) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x", **arguments)
        pieces = cut(slicer, make(ROW))
        assert [np.asarray(piece).tolist() for piece in pieces] == [[row] for row in expected]
        assert {type(piece) for piece in pieces} == {type(make(ROW))}
        assert slicer.minibatch_size == len(expected)

    @FRAMEWORKS
    @pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
    def test_mirroring(self, make: Maker, dtype: str) -> None:
        batch = np.array([[[0, 1, 2, 3, 1]]]).astype(dtype)
        pieces = cut(SlidingSlicer([-1, -1, 4], pad_mode="mirror", slice="x"), make(batch))
        expected = np.pad(batch, [(0, 0), (0, 0), (0, 3)], mode="reflect")
        np.testing.assert_array_equal(np.asarray(pieces[1]), expected[..., 4:])
        assert dtype_of(pieces[1]) == dtype

    @pytest.mark.tf
    def test_mirroring_pads_any_axis_in_tensorflow(self) -> None:
        images = np.arange(40, dtype="float32").reshape(2, 4, 5, 1)
        slicer = SlidingSlicer([-1, 3, 3, -1], pad_mode="mirror", slice="x")
        batch = pytest.importorskip("tensorflow").constant(images)
        padded = np.pad(images, [(0, 0), (0, 2), (0, 1), (0, 0)], mode="reflect")
        expected = [padded[:, i : i + 3, j : j + 3] for i, j in product((0, 3), (0, 3))]
        np.testing.assert_array_equal(np.stack(cut(slicer, batch)), expected)
        np.testing.assert_array_equal(there_and_back(slicer, batch), images)

    @FRAMEWORKS
    def test_squeezed_axes(self, make: Maker) -> None:
        volume = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
        slicer = SlidingSlicer([-1, 1, 1], slice="x", squeeze_window=True)
        pieces = cut(slicer, make(volume))
        expected = [volume[:, i, j] for i, j in product(range(3), range(4))]
        np.testing.assert_array_equal(np.stack([np.asarray(piece) for piece in pieces]), expected)
        np.testing.assert_array_equal(np.asarray(there_and_back(slicer, make(volume))), volume)


class TestJoining:
    @FRAMEWORKS
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"pad_val": -1}, [0, 1, 2, 3, -1]),
            ({"pad_mode": "partial"}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "nopad"}, [0, 1, 2, 3, 4]),
            ({"pad_mode": "nopad", "unslice_mode": "sum"}, [0, 1, 2, 6, 4]),
            ({"strides": 1}, [0, 1, 2, 3, 4]),
            ({"strides": 1, "unslice_mode": "sum"}, [0, 2, 4, 6, 4]),
            ({"strides": 3, "pad_val": 7}, [0, 1, 7, 3, 4]),
            ({"strides": 3, "pad_val": 7, "unslice_mode": "sum"}, [0, 1, 7, 3, 4]),
        ],
    )
    def test_a_row(self, make: Maker, arguments: dict[str, Any], expected: list[int]) -> None:
        batch = make(ROW.copy())
        joined = there_and_back(SlidingSlicer([-1, 2], slice="x", **arguments), batch)
        assert np.asarray(joined).tolist() == [expected]
        assert type(joined) is type(batch)
        np.testing.assert_array_equal(np.asarray(batch), ROW)

    @FRAMEWORKS
    def test_overlaps_are_averaged(self, make: Maker) -> None:
        slicer = SlidingSlicer([-1, 2], strides=1, slice="x")
        cut(slicer, make(np.zeros((1, 3), dtype="float32")))
        slices = tuple(make(np.array([row], dtype="float32")) for row in ([1, 2], [4, 8]))
        assert np.asarray(slicer._unslice_batch(slices, "y")).tolist() == [[1, 3, 8]]

    @FRAMEWORKS
    @pytest.mark.parametrize("mode", ["avg", "sum"])
    @pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int64", "bool"])
    def test_dtypes(self, make: Maker, mode: str, dtype: str) -> None:
        batch = (ROW[:, :4] % 2).astype(dtype)
        slicer = SlidingSlicer([-1, 2], slice="x", unslice_mode=mode)
        joined = there_and_back(slicer, make(batch))
        assert dtype_of(joined) == ("float32" if mode == "avg" else dtype)
        np.testing.assert_array_equal(np.asarray(joined).astype(dtype), batch)

    @given(data=st.data())
    def test_joining_restores_the_batch(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(1, 3))
        shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
        window = [data.draw(st.sampled_from([-1, *range(1, size + 1)])) for size in shape]
        strides = [0 if w == -1 else data.draw(st.integers(1, w)) for w in window]
        pad_mode = data.draw(st.sampled_from(PAD_MODES[1:]))
        if pad_mode == "mirror":
            assume(rank > 2 and all(w < n for n, w in zip(shape[2:], window[2:], strict=True)))
        batch = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        slicer = SlidingSlicer(
            window, strides, pad_mode=pad_mode, slice="x", squeeze_window=data.draw(st.booleans())
        )
        for value in (batch, torch.from_numpy(batch)):
            np.testing.assert_array_equal(np.asarray(there_and_back(slicer, value)), batch)

    def test_gradients(self) -> None:
        slicer = SlidingSlicer([-1, 2], strides=1, slice="x")
        cut(slicer, torch.zeros(1, 3))
        slices = tuple(torch.ones(1, 2, requires_grad=True) for _ in range(2))
        slicer._unslice_batch(slices, "y").sum().backward()
        gradients = [piece.grad.tolist() for piece in slices if piece.grad is not None]
        assert gradients == [[[1.0, 0.5]], [[0.5, 1.0]]]

    @pytest.mark.tf
    def test_variables(self) -> None:
        tf = pytest.importorskip("tensorflow")
        slicer = SlidingSlicer([2], unslice="y", unslice_shape=[4])
        slices = (tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0]))
        assert slicer._unslice_batch(slices, "y").numpy().tolist() == [1, 2, 3, 4]


class TestShapes:
    @FRAMEWORKS
    def test_lengths_of_the_pieces(self, make: Maker) -> None:
        slicer = SlidingSlicer(
            [-1, -1, 1, 2], unslice="y", unslice_shape=[-1, -1, 3, 4], squeeze_window=True
        )
        for batch, channels in ((4, 1), (1, 3), (2, 2)):
            images = np.random.default_rng(0).random((batch, channels, 3, 4), "float32")
            pieces = tuple(
                make(images[:, :, row, start : start + 2]) for row in range(3) for start in (0, 2)
            )
            np.testing.assert_array_equal(np.asarray(slicer._unslice_batch(pieces, "y")), images)

    @FRAMEWORKS
    @pytest.mark.parametrize("pad_mode", ["drop", "partial", "constant", "nopad"])
    @pytest.mark.parametrize("stride", [4, 3])
    def test_lengths_that_vary(self, make: Maker, pad_mode: str, stride: int) -> None:
        slicer = SlidingSlicer(
            [-1, -1, 4],
            strides=[0, 0, stride],
            pad_mode=pad_mode,
            slice="x",
            unslice="y",
            unslice_shape=[-1, 3, -1],
        )
        for length in (13, 11, 8, 5, 13):
            signal = np.arange(2.0 * length, dtype="float32").reshape(2, 1, length) + 1
            pieces = cut(slicer, make(signal))
            outputs = tuple(make(np.repeat(np.asarray(piece), 3, axis=1)) for piece in pieces)
            joined = np.asarray(slicer._unslice_batch(outputs, "y"))
            covered = len(pieces) * stride + 4 - stride if pad_mode == "drop" else length
            expected = np.repeat(signal, 3, axis=1)
            expected[..., covered:] = 0
            np.testing.assert_allclose(joined, expected, rtol=1e-6)

    @FRAMEWORKS
    @pytest.mark.parametrize("length", [195, 210, 250])
    def test_shape_whose_windows_are_elsewhere_is_refused(self, make: Maker, length: int) -> None:
        slicer = SlidingSlicer(
            [-1, 64], pad_mode="nopad", slice="x", unslice="y", unslice_shape=[-1, 200]
        )
        for is_right in (True, False):
            size = 200 if is_right else length
            data = np.arange(float(size), dtype="float32")[None]
            pieces = tuple(cut(slicer, make(data)))
            if is_right:
                np.testing.assert_array_equal(slicer._unslice_batch(pieces, "y"), data)
                continue
            with pytest.raises(ValueError, match=rf"'y'.*\[1, 200\].*\[1, {length}\].*-1"):
                slicer._unslice_batch(pieces, "y")

    def test_length_of_an_axis_with_stride_0_is_that_of_the_slices(self) -> None:
        slicer = SlidingSlicer(
            [2, 4], strides=[2, 0], slice="x", unslice="y", unslice_shape=[-1, -1]
        )
        pieces = cut(slicer, torch.arange(16.0).reshape(4, 4))
        outputs = tuple(piece[:, :3] for piece in pieces)
        assert slicer._unslice_batch(outputs, "y").tolist() == [
            [4 * row + column for column in range(3)] for row in range(4)
        ]

    def test_shape_of_any_sliced_key_may_be_given(self) -> None:
        slicer = SlidingSlicer(
            [4], pad_mode="nopad", slice=["a", "b"], unslice="y", unslice_shape=[13]
        )
        data = torch.arange(13.0), torch.arange(14.0)
        pieces = tuple(piece for piece, _ in slicer.slice_batches(data))
        assert torch.equal(slicer._unslice_batch(pieces, "y"), data[0])

    def test_shape_of_the_windows_alone_may_be_given(self) -> None:
        slicer = SlidingSlicer([2], pad_mode="drop", slice="x", unslice="y", unslice_shape=[4])
        for length in (5, 4):
            pieces = cut(slicer, torch.arange(float(length)))
            assert slicer._unslice_batch(tuple(pieces), "y").tolist() == [0, 1, 2, 3]

    def test_length_that_varies_needs_sliced_data(self) -> None:
        slicer = SlidingSlicer([2], slice="x", unslice="y", unslice_shape=[-1])
        with pytest.raises(AssertionError, match=r"'y'.*not sliced anything"):
            slicer._unslice_batch((torch.ones(2),), "y")

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

    def test_each_thread_has_its_own_shape(self) -> None:
        slicer = SlidingSlicer([-1, 2], slice="x")
        pieces = cut(slicer, torch.ones(1, 4))
        thread = threading.Thread(target=cut, args=(slicer, torch.ones(1, 6)))
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
            ({"window_size": []}, r"window_size=\[\].*each axis"),
            ({"window_size": [-1, 0]}, r"window_size=\[-1, 0\].*positive int"),
            ({"window_size": [2.0]}, r"window_size=\[2\.0\].*positive int"),
            ({"window_size": [-1, 2], "strides": [1]}, r"strides=\[1\] and window_size=\[-1, 2\]"),
            ({"window_size": [2], "strides": [-1]}, r"strides=\[-1\].*at least 0"),
            ({"window_size": [2], "strides": ["a"]}, r"strides=\['a'\].*at least 0"),
            ({"window_size": [2], "pad_mode": "reflect"}, "pad_mode.*'mirror'.*'reflect'"),
            ({"window_size": [-1, 2], "pad_mode": "mirror"}, r"'mirror'.*3 axes.*\[-1, 2\]"),
            ({"window_size": [2], "unslice_mode": "mean"}, "unslice_mode.*'avg'.*'mean'"),
            (
                {"window_size": [2], "unslice_shape": (4, 4)},
                r"unslice_shape=\[4, 4\] and window_size=\[2\]",
            ),
            (
                {"window_size": [-1, 2], "slice": None, "unslice": "y", "unslice_shape": (-1, -1)},
                "unslice_shape.* not sliced",
            ),
            ({"window_size": [-1, 2], "unslice_shape": (0, 4)}, r"unslice_shape=\[0, 4\]"),
            ({"window_size": [2], "slice": None, "unslice": "y"}, r"\['y'\].*unslice_shape"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(AssertionError, match=f"SlidingSlicer.*{text}"):
            SlidingSlicer(**{"slice": "x", **arguments})

    @FRAMEWORKS
    def test_data_of_another_rank(self, make: Maker) -> None:
        with pytest.raises(ValueError, match=r"SlidingSlicer.*\['x'\].*\[-1, 2\].*\[2, 3, 4\]"):
            SlidingSlicer([-1, 2], slice="x")._slice_batch(make(np.ones((2, 3, 4))))

    def test_nothing_was_sliced(self) -> None:
        with pytest.raises(AssertionError, match=r"SlidingSlicer.*'x'.*unslice_shape"):
            SlidingSlicer([-1, 2], slice="x")._unslice_batch((torch.ones(1, 2),), key="x")

    def test_the_number_of_slices(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[1, 6])
        with pytest.raises(AssertionError, match=r"SlidingSlicer.*'y'.*\[1, 6\].*3 windows.*1 sli"):
            slicer._unslice_batch((torch.ones(1, 2),), key="y")

    @FRAMEWORKS
    @pytest.mark.parametrize("shape", [(2, 3), (1, 2), (2, 1), (2,)])
    def test_the_shape_of_slices(self, make: Maker, shape: tuple[int, ...]) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[2, 4])
        slices = (make(np.ones(shape, dtype="float32")),) * 2
        with pytest.raises(ValueError, match=r"SlidingSlicer.*'y'.*\[2, 2\].*\[2, 4\]") as caught:
            slicer._unslice_batch(slices, key="y")
        assert str(list(shape)) in str(caught.value)

    def test_the_rank_of_slices(self) -> None:
        slicer = SlidingSlicer([-1, 2], unslice="y", unslice_shape=[-1, 4])
        with pytest.raises(ValueError, match=r"SlidingSlicer.*\[-1, 4\].*\[2\]"):
            slicer._unslice_batch((torch.ones(2), torch.ones(2)), key="y")
