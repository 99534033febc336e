"""A slicer with a sliding window."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten
from fastnet.slicer.slicer import Slicer
from fastnet.util.collections import to_list

PAD_MODES = ("drop", "partial", "constant", "nopad", "mirror")
UNSLICE_MODES = ("sum", "avg")

Shape = tuple[int, ...]


class _LastShapes(threading.local):
    """The shapes of the data that each slicer sliced last in this thread.

    They are stored by key, and that of the last key under None, too.
    """

    def __init__(self) -> None:
        self.by_slicer: WeakKeyDictionary[SlidingSlicer, dict[str | None, Shape]]
        self.by_slicer = WeakKeyDictionary()


_last_shapes = _LastShapes()


class SlidingSlicer(Slicer):
    """A slicer that makes a minibatch of each position of a sliding window.

    The window has a length for each axis of the data. Images of shape [B, C, W, H] and
    ``window_size=[-1, -1, 64, 64]`` give patches of shape [B, C, 64, 64]. Unslicing places each
    patch where it was. Overlaps are averaged or added, and gaps are filled with `pad_val`.

    An axis whose stride is not less than its length is not sliced, however short the window is.
    With `pad_mode` "drop" the window must fit into it.

    Args:
        window_size: The length of the window along each axis, or -1 for an axis that is not sliced.
        strides: The distance between windows along each axis, or 0 for an axis that is not sliced.
            An int applies to every axis that is sliced. By default, the lengths of the window, so
            that windows do not overlap.
        pad_mode: How to treat a last window that reaches past the end of the data. "drop" leaves
            the window out, and unslicing fills its place with `pad_val`. "partial" shortens it.
            "nopad" moves it back until it fits. "constant" pads the data with `pad_val`. "mirror"
            pads with a reflection without the edge. It does not pad the first two axes, batch and
            channel, in torch and numpy. In TensorFlow, where channels come last, it pads any axis.
        pad_val: The value to pad with, and to fill gaps with when unslicing.
        slice: The key or keys to slice. All of them must have the same number of windows.
        unslice: The key or keys to unslice. By default, those of `slice`. None for none.
        unslice_mode: "avg" to average overlapping windows, always in float32, or "sum" to add them,
            in their own type.
        unslice_shape: The shape of the unsliced data, with -1 for an axis whose length may vary: it
            is that of the slices where the axis is not sliced, such as the batch, and that of the
            sliced data otherwise. By default, the shape that a key had before it was sliced, or for
            other keys the shape of the last key that was sliced. Required for a slicer that slices
            nothing, and then with -1 only for axes that are not sliced.
        squeeze_window: Whether to remove the axes along which the window has length 1 from the
            slices. Unslicing restores them.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        AssertionError: If an argument is malformed.

    >>> slicer = SlidingSlicer(window_size=[-1, 2], pad_mode="partial", slice="x")
    >>> minibatches = slicer.slice_batches((np.array([[1, 2, 3]]),))
    >>> minibatches
    [(array([[1, 2]]),), (array([[3]]),)]
    >>> slicer._unslice_batch(tuple(value for (value,) in minibatches), key="x")
    array([[1., 2., 3.]], dtype=float32)
    """

    def __init__(
        self,
        window_size: Sequence[int],
        strides: int | Sequence[int] = (),
        pad_mode: str = "drop",
        pad_val: float = 0.0,
        slice: str | Sequence[str] | None = None,
        unslice: str | Sequence[str] | None = (),
        unslice_mode: str = "avg",
        unslice_shape: Sequence[int] | None = None,
        squeeze_window: bool = False,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(slice=slice, unslice=unslice, mode=mode, ds_id=ds_id)
        window = list(to_list(window_size))
        self.window_size = window
        rule = "a positive int, or -1 for an axis that is not sliced"
        self._check_lengths("window_size", window, lambda n, _: n > 0 or n == -1, rule)
        if isinstance(strides, int):
            strides = [0 if length == -1 else strides for length in window]
        self.strides = list(to_list(strides)) or [max(length, 0) for length in window]
        self._check_lengths("strides", self.strides, lambda n, _: n >= 0, "an int of at least 0")
        choices = (("pad_mode", pad_mode, PAD_MODES), ("unslice_mode", unslice_mode, UNSLICE_MODES))
        for name, value, allowed in choices:
            if value not in allowed:
                raise AssertionError(
                    f"SlidingSlicer's {name} must be one of {list(allowed)}, not {shorten(value)}."
                )
        if pad_mode == "mirror" and len(window) < 3:
            raise AssertionError(
                "SlidingSlicer's pad_mode 'mirror' does not pad the first two axes, so it needs a "
                f"window_size of at least 3 axes, but got {window}."
            )
        self.pad_mode = pad_mode
        self.pad_val = pad_val
        self.unslice_mode = unslice_mode
        self._fixed_shape = None if unslice_shape is None else tuple(to_list(unslice_shape))
        if self._fixed_shape is not None:
            lengths = list(self._fixed_shape)
            slices = bool(self.slice_inputs)
            self._check_lengths(
                "unslice_shape",
                lengths,
                lambda n, w: n > 0 or (n == -1 and (w == -1 or slices)),
                "a positive int, or -1 for a length that may vary" if slices else rule,
            )
        elif self.unslice_inputs and not self.slice_inputs:
            raise AssertionError(
                f"SlidingSlicer unslices {self.unslice_inputs} but slices nothing, so the shape "
                "to restore is unknown. Give it keys to `slice`, or an unslice_shape."
            )
        self.auto_squeeze = [
            axis for axis, length in enumerate(window) if squeeze_window and length == 1
        ]

    def _check_lengths(
        self, name: str, lengths: list[Any], is_valid: Callable[[int, int], bool], rule: str
    ) -> None:
        """Raise an AssertionError unless each length is valid beside that of the window."""
        pairs = zip(lengths, self.window_size, strict=False)
        has_each_axis = bool(lengths) and len(lengths) == len(self.window_size)
        if not has_each_axis or not all(isinstance(n, int) and is_valid(n, w) for n, w in pairs):
            window = "" if name == "window_size" else f" and window_size={self.window_size}"
            raise AssertionError(
                f"SlidingSlicer has {name}={shorten(lengths)}{window}. Pass {rule} for each axis "
                "of the data."
            )

    @property
    def static_unslice_shape(self) -> bool:
        """Whether an `unslice_shape` was given."""
        return self._fixed_shape is not None

    @property
    def unslice_shape(self) -> list[int] | None:
        """The shape of unsliced data: the one that was given, or that of the data sliced last."""
        sliced_shape = _last_shapes.by_slicer.get(self, {}).get(None)
        shape = sliced_shape if self._fixed_shape is None else self._fixed_shape
        return None if shape is None else list(shape)

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Slice the values of `slice_inputs` into windows, and remember their shapes."""
        minibatches = super().slice_batches(batches)
        if self.unslice_inputs:
            shapes = list(map(_shape_of, batches))
            _last_shapes.by_slicer[self] = {
                None: shapes[-1],
                **dict(zip(self.slice_inputs, shapes, strict=True)),
            }
        return minibatches

    def _slice_batch(self, batch: Any) -> list[Any]:
        tensors = backend_of(batch)
        shape = _shape_of(batch)
        if len(shape) != len(self.window_size):
            raise ValueError(
                f"SlidingSlicer slices {self.slice_inputs} by the window_size {self.window_size}, "
                f"but got data of shape {list(shape)}. Give a length for each axis, or -1."
            )
        tiling = self._tiling(shape, tensors)
        padded = tensors.pad_ends(batch, tiling.padding, self.pad_mode == "mirror", self.pad_val)
        slices = [padded[window] for window in tiling.windows]
        for axis in reversed(self.auto_squeeze):
            slices = [
                tensors.squeeze(value, axis) if value.shape[axis] == 1 else value
                for value in slices
            ]
        return slices

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        sliced_shapes = _last_shapes.by_slicer.get(self, {})
        sliced_shape = sliced_shapes.get(key, sliced_shapes.get(None))
        shape = sliced_shape if self._fixed_shape is None else self._fixed_shape
        if shape is None or (sliced_shape is None and self._has_open_length(shape)):
            raise AssertionError(
                f"SlidingSlicer cannot unslice '{key}', because it has not sliced anything in "
                "this thread. Slice a batch first, or give it an unslice_shape without -1 for "
                "axes that are sliced."
            )
        tensors = backend_of(slices[0])
        if -1 in shape:
            shape = self._fill_shape(shape, _shape_of(slices[0]), sliced_shape)
        tiling = self._tiling(shape, tensors)
        if len(slices) != len(tiling.windows):
            raise AssertionError(
                f"SlidingSlicer cannot unslice '{key}': a shape of {list(shape)} has "
                f"{len(tiling.windows)} windows of size {self.window_size} with strides "
                f"{self.strides}, but there are {len(slices)} slices."
            )
        if self._fixed_shape is not None and sliced_shape is not None:
            # A key that was not sliced may be computed from any of the sliced ones.
            shapes = [sliced_shape] if key in sliced_shapes else list(sliced_shapes.values())
            self._check_starts(key, shape, shapes, tensors)
        if not hasattr(tensors, "to_numpy"):
            return self._merge(slices, key, shape, tiling)
        # TensorFlow's tensors cannot be written to, so they are unsliced as arrays.
        arrays = tuple(tensors.to_numpy(value) for value in slices)
        return tensors.constant(self._merge(arrays, key, shape, tiling), slices[0])

    def _has_open_length(self, shape: Shape) -> bool:
        """Return whether a shape has -1 for an axis that is sliced."""
        return any(shape[axis] == -1 for axis in self._sliced_axes())

    def _sliced_axes(self) -> list[int]:
        pairs = zip(self.window_size, self.strides, strict=True)
        return [axis for axis, (length, stride) in enumerate(pairs) if length != -1 and stride > 0]

    def _check_starts(
        self, key: str, shape: Shape, sliced_shapes: list[Shape], tensors: Any
    ) -> None:
        """Check that the windows over `unslice_shape` are where those over sliced data were."""
        if shape in sliced_shapes:
            return
        starts = _starts(self._tiling(shape, tensors))
        if any(starts == _starts(self._tiling(sliced, tensors)) for sliced in sliced_shapes):
            return
        raise ValueError(
            f"SlidingSlicer cannot unslice '{key}' to a shape of {list(shape)}: the windows are at "
            f"other places than in the data of shape {list(sliced_shapes[-1])} that was sliced. "
            "Give its unslice_shape -1 for an axis whose length varies."
        )

    def _fill_shape(self, shape: Shape, slice_shape: Shape, sliced_shape: Shape | None) -> Shape:
        """Replace each -1 of a shape by the length of a slice, or of the data that was sliced."""
        lengths = list(slice_shape)
        for axis in self.auto_squeeze:
            if len(lengths) < len(shape):
                lengths.insert(axis, 1)
        if len(lengths) != len(shape):
            raise ValueError(
                f"SlidingSlicer's unslice_shape is {list(shape)}, but it got a slice of shape "
                f"{list(slice_shape)}. Unslice keys with as many axes."
            )
        if sliced_shape is not None:
            for axis in self._sliced_axes():
                lengths[axis] = sliced_shape[axis]
        return tuple(
            length if size == -1 else size for size, length in zip(shape, lengths, strict=True)
        )

    def _merge(self, slices: tuple[Any, ...], key: str, shape: Shape, tiling: Tiling) -> Any:
        tensors = backend_of(slices[0])
        padded = [size + growth for size, growth in zip(shape, tiling.padding, strict=True)]
        average = self.unslice_mode == "avg"
        merged = tensors.zeros(padded, slices[0], "float32" if average else None)
        for position, value in zip(tiling.windows, slices, strict=True):
            window = merged[position]
            for axis in self.auto_squeeze:
                if window.shape[axis] == 1:
                    value = tensors.expand_dims(value, axis)
            # A slice with an axis of length 1 would be broadcast over its window.
            if value.shape != window.shape:
                raise ValueError(
                    f"SlidingSlicer cannot unslice '{key}': a slice of shape {[*value.shape]} "
                    f"does not fit into its window of shape {[*window.shape]}, in data of shape "
                    f"{list(shape)}. Give an unslice_shape, or slice a key of the same shape."
                )
            window += value
        if any(tiling.padding):
            merged = merged[tuple(slice(size) for size in shape)]
        if average and any(counts is not None for counts in tiling.coverage):
            counts_per_axis = [
                np.ones(1, "float32") if counts is None else np.maximum(counts, np.float32(1))
                for counts in tiling.coverage
            ]
            # The number of windows over an element is the product of the numbers along each axis.
            counts = functools.reduce(np.multiply.outer, counts_per_axis)
            merged /= tensors.constant(counts, merged)
        if self.pad_val != 0:
            for axis, counts in enumerate(tiling.coverage):
                if counts is not None and 0 in counts:
                    gaps = np.flatnonzero(counts == 0).tolist()
                    merged[(slice(None),) * axis + (gaps,)] = self.pad_val
        return merged

    def _tiling(self, shape: Shape, tensors: Any) -> Tiling:
        mirrored_from = 0 if getattr(tensors, "CHANNELS_LAST", False) else 2
        window, strides = tuple(self.window_size), tuple(self.strides)
        return tile(shape, window, strides, self.pad_mode, mirrored_from)


def _shape_of(tensor: Any) -> Shape:
    return tuple(backend_of(tensor).get_shape(tensor))


class Tiling(NamedTuple):
    """The windows over data of one shape."""

    # For each window, a slice for each axis, which may end past the data.
    windows: tuple[tuple[slice, ...], ...]
    # For each axis, the padding at its end that the windows need.
    padding: Shape
    # For each axis, the number of windows over each index, or None where it is always one.
    coverage: tuple[NDArray[Any] | None, ...]


@functools.lru_cache(maxsize=256)
def tile(
    shape: Shape, window: Shape, strides: Shape, pad_mode: str, mirrored_from: int = 2
) -> Tiling:
    """Place windows over a shape. "mirror" pads the axes from `mirrored_from` on.

    As in FastEstimator an axis is not sliced if its window is -1, if its stride is 0, or if its
    stride is not less than its length.

    >>> tile((4,), window=(3,), strides=(3,), pad_mode="nopad").windows
    ((slice(0, 3, None),), (slice(1, 4, None),))
    """
    windows_per_axis = []
    padding = []
    for axis, (size, length, stride) in enumerate(zip(shape, window, strides, strict=True)):
        axis_text = f"axis {axis} of data of shape {list(shape)}"
        advice = f"window_size is {list(window)}. Use another pad_mode, or a smaller window."
        starts: Sequence[int] = ()
        if length != -1 and stride > 0:
            # The last window is the first one that reaches the end, if one does.
            last_index = max((size - length + stride - 1) // stride, 0)
            starts = range(0, size, stride)[: last_index + 1]
        is_padded = pad_mode == "constant" or (pad_mode == "mirror" and axis >= mirrored_from)
        growth = max(starts[-1] + length - size, 0) if starts and is_padded else 0
        if pad_mode == "mirror" and growth >= size > 0:
            raise ValueError(
                f"pad_mode 'mirror' can pad {axis_text}, by {size - 1} at most, not {growth}: "
                f"{advice}"
            )
        if pad_mode == "drop" and starts and size < length:
            raise ValueError(f"No window fits into {axis_text}, and pad_mode is 'drop': {advice}")
        windows = [slice(None)]
        if starts and stride < size:
            if pad_mode == "nopad" and size < length:
                raise AssertionError(
                    f"pad_mode 'nopad' cannot move a window into {axis_text}: {advice}"
                )
            if pad_mode == "drop":
                starts = [start for start in starts if start + length <= size]
            elif pad_mode == "nopad":
                starts = [min(start, size - length) for start in starts]
            windows = [slice(start, start + length) for start in starts]
        windows_per_axis.append(windows)
        padding.append(growth)
    coverage = tuple(map(_count_windows, shape, windows_per_axis))
    return Tiling(tuple(itertools.product(*windows_per_axis)), tuple(padding), coverage)


def _starts(tiling: Tiling) -> list[Shape]:
    """List where each window starts."""
    return [tuple(along_axis.start or 0 for along_axis in window) for window in tiling.windows]


def _count_windows(size: int, windows: list[slice]) -> NDArray[Any] | None:
    counts = np.zeros(size, "float32")
    for window in windows:
        counts[window] += 1
    return None if (counts == 1).all() else counts
