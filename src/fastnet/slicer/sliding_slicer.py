"""Cut with a window that slides over the data."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fastnet.backend.dispatch import implementation
from fastnet.errors import shown
from fastnet.slicer.slicer import Slicer
from fastnet.slicer.tiling import Tiling, tile
from fastnet.util.collections import to_list

__all__ = ["SlidingSlicer"]

PAD_MODES = ("drop", "partial", "constant", "nopad", "mirror")
UNSLICE_MODES = ("sum", "avg")


class _Shapes(threading.local):
    """The shapes that each slicer cut last, by key, as this thread saw it.

    A slicer may belong to two networks that run at once, so the shapes do not lie on the slicer.
    The key None stands for the last value of all.
    """

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[SlidingSlicer, dict[str | None, tuple[int, ...]]]
        self.of = WeakKeyDictionary()


_shapes = _Shapes()


class SlidingSlicer(Slicer):
    """A slicer that makes a minibatch of each position of a sliding window.

    The window has a length for each axis of the data. Images of shape [B, C, W, H] and
    ``window_size=[-1, -1, 64, 64]`` give patches of shape [B, C, 64, 64]. Joined again, patches
    lie where they were cut: where they overlap they are averaged or added, and gaps between them
    are filled with `pad_val`.

    An axis of the data that is no longer than its stride is not cut at all, and the piece has all
    of it, however short the window is; with `pad_mode` "drop" the window must fit into it.

    Args:
        window_size: The length of the window along each axis; -1 for an axis that is not cut.
        strides: How far the window moves along each axis; 0 for an axis that is not cut. One int
            stands for every axis that is cut. Left out, the window's own lengths, so that windows
            touch without overlapping.
        pad_mode: What to do with a last window that reaches past the end of the data: "drop" it, so
            that what no other window reaches is `pad_val` in what is joined; let it be "partial"
            (shorter than the others), pad the data with a "constant", move it back until it fits
            ("nopad"), or let the data go on as its "mirror" image, without the edge. In torch and
            numpy this leaves the first two axes, batch and channel, as they are; in TensorFlow,
            where the channels come last, each axis can be mirrored.
        pad_val: What to pad with, and what to fill gaps with when joining.
        slice: The key or keys to cut. Keys that are cut together must give equally many windows.
        unslice: The key or keys to join. Left out, those of `slice`. None to join nothing.
        unslice_mode: Whether overlapping windows are averaged ("avg", always in float32) or added
            up ("sum", in their own type) when they are joined.
        unslice_shape: The shape that joining leads to, with -1 for an axis that is not cut and is
            as long as it is in the pieces, such as the batch's. Left out, the shape that a key had
            before it was cut; a key that was not cut takes the shape of the last key that was. It
            must be given to a slicer that cuts nothing.
        squeeze_window: Whether axes along which the window has length 1 are taken out of the
            pieces, and put back when joining.
        mode: The mode or modes to work in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to work for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        AssertionError: If an argument is malformed.

    >>> slicer = SlidingSlicer(window_size=[-1, 2], pad_mode="partial", slice="x")
    >>> pieces = slicer.slice_batches((np.array([[1, 2, 3]]),))
    >>> pieces
    [(array([[1, 2]]),), (array([[3]]),)]
    >>> slicer._unslice_batch(tuple(piece for (piece,) in pieces), key="x")
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
        self.window_size = self._read_window(window_size)
        self.strides = self._read_strides(strides)
        if pad_mode not in PAD_MODES:
            raise AssertionError(
                f"pad_mode must be one of {', '.join(map(repr, PAD_MODES))}, but got "
                f"{shown(pad_mode)}."
            )
        if pad_mode == "mirror" and len(self.window_size) < 3:
            raise AssertionError(
                "pad_mode 'mirror' leaves the first two axes, batch and channel, as they are, so "
                f"it needs a window_size of at least 3 axes, but got {self.window_size}."
            )
        self.pad_mode = pad_mode
        self.pad_val = pad_val
        if unslice_mode not in UNSLICE_MODES:
            raise AssertionError(
                f"unslice_mode must be one of {', '.join(map(repr, UNSLICE_MODES))}, but got "
                f"{shown(unslice_mode)}."
            )
        self.unslice_mode = unslice_mode
        self._fixed_shape = None if unslice_shape is None else tuple(to_list(unslice_shape))
        if self._fixed_shape is not None and len(self._fixed_shape) != len(self.window_size):
            raise AssertionError(
                f"unslice_shape and window_size must have the same number of axes, but got "
                f"{list(self._fixed_shape)} and {self.window_size}."
            )
        for length, cut in zip(self._fixed_shape or (), self.window_size, strict=False):
            if not isinstance(length, int) or (length < 1 and (length, cut) != (-1, -1)):
                raise AssertionError(
                    "Each length of an unslice_shape must be a positive int, or -1 for an axis "
                    f"that is not cut, but got {shown(length)} in {list(self._fixed_shape or ())}, "
                    f"for windows of {self.window_size}."
                )
        if self.unslice_inputs and not self.slice_inputs and self._fixed_shape is None:
            raise AssertionError(
                f"SlidingSlicer is to un-slice {self.unslice_inputs} but slices nothing, so it "
                "cannot see what shape to restore. Give it keys to `slice`, or an unslice_shape."
            )
        self.auto_squeeze = [
            axis for axis, length in enumerate(self.window_size) if squeeze_window and length == 1
        ]

    @staticmethod
    def _read_window(window_size: Any) -> list[int]:
        given = list(to_list(window_size))
        if not given:
            raise AssertionError(
                "SlidingSlicer needs a window_size: a length for each axis of the data, or -1."
            )
        for length in given:
            if not isinstance(length, int) or (length < 1 and length != -1):
                raise AssertionError(
                    f"Each length of a window_size must be a positive int, or -1 for an axis that "
                    f"is not cut, but got {shown(length)} in {given}."
                )
        return given

    def _read_strides(self, strides: Any) -> list[int]:
        if isinstance(strides, int):
            given: list[Any] = [0 if length == -1 else strides for length in self.window_size]
        else:
            given = list(to_list(strides)) or [max(length, 0) for length in self.window_size]
        if len(given) != len(self.window_size):
            raise AssertionError(
                f"strides and window_size must have the same number of axes, but got {given} and "
                f"{self.window_size}."
            )
        for stride in given:
            if not isinstance(stride, int) or stride < 0:
                raise AssertionError(
                    f"Each stride must be an int of at least 0, but got {shown(stride)} in {given}."
                )
        return given

    @property
    def static_unslice_shape(self) -> bool:
        """Whether the shape that joining leads to was given when the slicer was made."""
        return self._fixed_shape is not None

    @property
    def unslice_shape(self) -> list[int] | None:
        """The shape that joining leads to: the one given, or that of what was last cut."""
        shape = self._target_shape(None)
        return None if shape is None else list(shape)

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Cut the values of `slice_inputs`.

        Args:
            batches: The values, one for each key of `slice_inputs`.

        Returns:
            A tuple for each window, with a piece of each value.

        Raises:
            AssertionError: If the values fall into different numbers of windows.
            ValueError: If a value has another number of axes than the window, or no window fits.
        """
        pieces = super().slice_batches(batches)
        if self.unslice_inputs and self._fixed_shape is None:
            shapes = _shapes.of[self]
            for key, batch in zip(self.slice_inputs, batches, strict=True):
                shapes[key] = _shape_of(batch)
        return pieces

    def _slice_batch(self, batch: Any) -> list[Any]:
        tensors = implementation(batch)
        shape = _shape_of(batch)
        if len(shape) != len(self.window_size):
            raise ValueError(
                f"SlidingSlicer cuts {self.slice_inputs} with a window of {len(self.window_size)} "
                f"axes, {self.window_size}, but got data of {len(shape)} axes, of shape "
                f"{list(shape)}. Give the window a length for each axis of the data, or -1."
            )
        if self.unslice_inputs and self._fixed_shape is None:
            _shapes.of[self] = {None: shape}
        tiling = self._tile(shape, tensors)
        padded = tensors.pad_ends(batch, tiling.padding, self.pad_mode == "mirror", self.pad_val)
        pieces = [padded[cut] for cut in tiling.cuts]
        for axis in reversed(self.auto_squeeze):
            pieces = [
                tensors.squeeze(piece, axis) if piece.shape[axis] == 1 else piece
                for piece in pieces
            ]
        return pieces

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        shape = self._target_shape(key)
        if shape is None:
            raise AssertionError(
                f"SlidingSlicer cannot un-slice '{key}', because it has not sliced anything in "
                "this thread, and has no unslice_shape. Slice a batch first, or give it an "
                "unslice_shape."
            )
        tensors = implementation(slices[0])
        if -1 in shape:
            shape = self._as_in(shape, slices[0])
        tiling = self._tile(shape, tensors)
        if len(slices) != len(tiling.cuts):
            raise AssertionError(
                f"SlidingSlicer cannot un-slice '{key}': a shape of {list(shape)} has "
                f"{len(tiling.cuts)} windows of size {self.window_size} with strides "
                f"{self.strides}, but there are {len(slices)} slices."
            )
        if not hasattr(tensors, "to_numpy"):
            return self._join(slices, key, shape, tiling)
        # tensors that cannot be written to are put together as arrays
        arrays = tuple(tensors.to_numpy(piece) for piece in slices)
        return tensors.from_numpy(self._join(arrays, key, shape, tiling), slices[0])

    def _as_in(self, shape: tuple[int, ...], piece: Any) -> tuple[int, ...]:
        """Take the lengths that were left open from a piece."""
        lengths = list(_shape_of(piece))
        for axis in self.auto_squeeze:
            if len(lengths) < len(shape):
                lengths.insert(axis, 1)
        if len(lengths) != len(shape):
            raise ValueError(
                f"SlidingSlicer joins pieces of {len(shape)} axes, by its unslice_shape "
                f"{list(shape)}, but got one of shape {list(_shape_of(piece))}."
            )
        return tuple(
            own if given == -1 else given for given, own in zip(shape, lengths, strict=True)
        )

    def _join(
        self, slices: tuple[Any, ...], key: str, shape: tuple[int, ...], tiling: Tiling
    ) -> Any:
        if not _are_numbers(slices[0]):
            raise TypeError(
                f"SlidingSlicer cannot un-slice '{key}': its slices are of type "
                f"{slices[0].dtype}, and only numbers can be averaged or added up. Leave the key "
                "out of `unslice`."
            )
        tensors = implementation(slices[0])
        grown = [size + growth for size, growth in zip(shape, tiling.padding, strict=True)]
        average = self.unslice_mode == "avg"
        merged = tensors.zeros(grown, slices[0], "float32" if average else None)
        for cut, piece in zip(tiling.cuts, slices, strict=True):
            window = merged[cut]
            for axis in self.auto_squeeze:
                if window.shape[axis] == 1:
                    piece = tensors.expand_dims(piece, axis)
            # a piece with an axis of length 1 would be added all over its window
            if piece.shape != window.shape:
                raise ValueError(
                    f"SlidingSlicer cannot un-slice '{key}': a slice of shape "
                    f"{list(_shape_of(piece))} does not fit into its window of shape "
                    f"{list(_shape_of(window))}, in data of shape {list(shape)}. Give the slicer "
                    "the unslice_shape of this key, or cut a key of its shape."
                )
            window += piece
        if any(tiling.padding):
            merged = merged[tuple(slice(size) for size in shape)]
        if average:
            counts = _window_counts(tiling, shape)
            if counts is not None:
                merged /= tensors.from_numpy(counts, merged)
        if self.pad_val != 0:
            self._fill_gaps(merged, tiling)
        return merged

    def _fill_gaps(self, merged: Any, tiling: Tiling) -> None:
        for axis, counts in enumerate(tiling.coverage):
            if counts is not None and 0 in counts:
                gaps = [position for position, count in enumerate(counts) if count == 0]
                merged[(slice(None),) * axis + (gaps,)] = self.pad_val

    def _target_shape(self, key: str | None) -> tuple[int, ...] | None:
        if self._fixed_shape is not None:
            return self._fixed_shape
        shapes = _shapes.of.get(self, {})
        return shapes.get(key, shapes.get(None))

    def _tile(self, shape: tuple[int, ...], tensors: Any) -> Tiling:
        return tile(
            shape,
            tuple(self.window_size),
            tuple(self.strides),
            self.pad_mode,
            mirrored_from=0 if getattr(tensors, "CHANNELS_LAST", False) else 2,
        )


def _shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(implementation(tensor).get_shape(tensor))


def _are_numbers(tensor: Any) -> bool:
    # not arrays of strings or of objects; types that numpy itself lacks are of the kind "V"
    return getattr(tensor.dtype, "kind", "f") not in "OSU"


def _window_counts(tiling: Tiling, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Count the windows over each position, or 1 where there is none.

    An axis whose positions all have one window has length 1 in the counts.
    """
    if all(counts is None for counts in tiling.coverage):
        return None
    per_axis = [
        np.ones(1, "float32") if counts is None else np.maximum(counts, 1).astype("float32")
        for counts in tiling.coverage
    ]
    counts: np.ndarray[Any, Any] = functools.reduce(np.multiply.outer, per_axis)
    return counts
