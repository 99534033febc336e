"""Arrays with an additional axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_int
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class ExpandDims(PerArray):
    """Add an axis of length 1. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of arrays.
        outputs: Key(s) of the results.
        axis: The index of the new axis in the result.

    Raises:
        ValueError: If `axis` is not an int.

    >>> ExpandDims("x", "y").forward([np.ones(2)], {})[0].shape
    (2, 1)
    """

    resolved_from = ("axis",)

    def __init__(
        self, inputs: Keys, outputs: Keys, mode: Names = None, ds_id: Names = None, axis: int = -1
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(axis):
            raise ValueError(f"ExpandDims's axis must be an int, not {shorten(axis)}.")
        self.axis = axis

    def apply(self, data: Any) -> Any:
        """Return one array with the new axis."""
        return np.expand_dims(data, self.axis)
