"""Class indices as one-hot vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class Onehot(PerArray):
    """Encode class indices as one-hot vectors. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of class indices, each an int or an array of ints.
        outputs: Key(s) of the vectors, float32, shape (..., num_classes), or (num_classes,) for a
            single index.
        num_classes: The number of classes.
        label_smoothing: The share of the 1 that is distributed over all classes, from 0 to 1.

    Raises:
        AssertionError: In a step, if an index is not an int, or too large.
        ValueError: If a number is out of range.

    >>> Onehot("x", "y", num_classes=3).forward([2], {})
    [array([0., 0., 1.], dtype=float32)]
    """

    resolved_from = ("num_classes", "label_smoothing")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        num_classes: int,
        label_smoothing: float = 0.0,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(num_classes) or num_classes < 1:
            raise ValueError(
                f"Onehot's num_classes must be an int of at least 1, not {shorten(num_classes)}."
            )
        if not is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"Onehot's label_smoothing must be from 0 to 1, not {shorten(label_smoothing)}."
            )
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing

    def apply(self, data: Any) -> Any:
        """Return the vectors for one array of indices."""
        indices = np.atleast_1d(data)
        if indices.dtype.kind not in "iu":
            raise AssertionError(
                f"Onehot's indices must be ints, but it got an array of dtype {indices.dtype}."
            )
        if indices.size:
            for index in (indices.min(), indices.max()):
                if not 0 <= index < self.num_classes:
                    raise AssertionError(
                        f"Onehot has {self.num_classes} classes, but got the index {index}."
                    )
        if indices.size == 1:
            indices = indices[0]
        vectors = np.eye(self.num_classes, dtype=np.float32)[indices]
        if self.label_smoothing:
            shared = self.label_smoothing / self.num_classes
            vectors = np.where(vectors != 0, 1.0 - self.label_smoothing + shared, shared)
        return vectors.astype(np.float32)
