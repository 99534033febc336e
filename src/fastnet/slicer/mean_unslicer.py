"""A slicer that averages slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.backend.dispatch import backend_of
from fastnet.slicer.slicer import Slicer


class MeanUnslicer(Slicer):
    """A slicer that unslices a value, such as a loss, by averaging its slices.

    It is used with another slicer that slices. The mean of ints or booleans is a float.

    Args:
        unslice: The key or keys to unslice. Their slices must have equal shapes.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    >>> import numpy as np
    >>> MeanUnslicer("loss")._unslice_batch((np.array([1.0, 2.0]), np.array([3.0, 6.0])), "loss")
    array([2., 4.])
    """

    def __init__(
        self,
        unslice: str | Sequence[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(slice=None, unslice=unslice, mode=mode, ds_id=ds_id)

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        tensors = backend_of(slices[0])
        is_integral = tensors.is_integral(slices[0])
        if is_integral and hasattr(tensors, "to_numpy"):
            # TensorFlow does not add tensors of different types, so numpy averages them.
            arrays = tuple(tensors.to_numpy(value) for value in slices)
            return tensors.constant(self._unslice_batch(arrays, key), slices[0])
        total = tensors.zeros_like(slices[0], "int64" if is_integral else None)
        for value in slices:
            total = total + value
        return total / len(slices)
