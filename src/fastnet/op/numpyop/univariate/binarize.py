"""Arrays thresholded to 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class Binarize(PerArray):
    """Threshold arrays: 1 where an element is at least the threshold, otherwise 0.

    See `NumpyOp` for `mode` and `ds_id`.

    Args:
        threshold: The threshold.
        inputs: Key(s) of arrays.
        outputs: Key(s) of the results, float32, of the inputs' shapes.

    Raises:
        ValueError: If `threshold` is not a number.

    >>> Binarize(0.5, "x", "y").forward([np.array([0.2, 0.5])], {})
    [array([0., 1.], dtype=float32)]
    """

    resolved_from = ("threshold",)

    def __init__(
        self, threshold: float, inputs: Keys, outputs: Keys, mode: Names = None, ds_id: Names = None
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_number(threshold):
            raise ValueError(f"Binarize's threshold must be a number, not {shorten(threshold)}.")
        self.threshold = threshold

    def apply(self, data: Any) -> Any:
        """Return 0 and 1 for one array."""
        return (data >= self.threshold).astype(np.float32)
