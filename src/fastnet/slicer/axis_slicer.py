"""A slicer along one axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten
from fastnet.slicer.slicer import Slicer


class AxisSlicer(Slicer):
    """A slicer that makes a minibatch of each index of one axis.

    The slices lack the axis. Volumes of shape [B, C, W, H, D] and ``axis=-1`` give D images of
    shape [B, C, W, H]. Unslicing stacks the slices along the axis.

    Args:
        axis: The axis. Negative values count from the end.
        slice: The key or keys to slice.
        unslice: The key or keys to unslice. By default, those of `slice`. None for none.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        AssertionError: If `axis` is not an int.

    >>> import numpy as np
    >>> slicer = AxisSlicer(axis=-1, slice="x")
    >>> slices = slicer.slice_batches((np.array([[1, 2], [3, 4]]),))
    >>> slices
    [(array([1, 3]),), (array([2, 4]),)]
    """

    def __init__(
        self,
        axis: int,
        slice: str | Sequence[str] | None = None,
        unslice: str | Sequence[str] | None = (),
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(slice=slice, unslice=unslice, mode=mode, ds_id=ds_id)
        if not isinstance(axis, int):
            raise AssertionError(
                f"The axis of an AxisSlicer must be an int, but got {shorten(axis)} of type "
                f"{type(axis).__name__}."
            )
        self.axis = axis

    def _slice_batch(self, batch: Any) -> list[Any]:
        tensors = backend_of(batch)
        shape = tuple(tensors.get_shape(batch))
        if not -len(shape) <= self.axis < len(shape):
            raise IndexError(
                f"AxisSlicer slices {self.slice_inputs} along axis {self.axis}, but got data of "
                f"shape {shape}, which has no such axis."
            )
        return list(tensors.slices_along(batch, self.axis))

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        tensors = backend_of(slices[0])
        shape = tuple(tensors.get_shape(slices[0]))
        if not -len(shape) - 1 <= self.axis <= len(shape):
            raise IndexError(
                f"AxisSlicer unslices '{key}' along a new axis {self.axis}, but its slices have "
                f"shape {shape}, too few axes for that. Unslice a value such as a loss with "
                "MeanUnslicer."
            )
        return tensors.stack(slices, self.axis)
