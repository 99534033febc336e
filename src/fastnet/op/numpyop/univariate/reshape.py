"""Arrays in another shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import read_shape
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class Reshape(PerArray):
    """Reshape arrays. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        shape: The new shape of a sample. One length may be -1 to be inferred.
        inputs: Key(s) of arrays.
        outputs: Key(s) of the results.

    Raises:
        ValueError: If `shape` is not a shape.

    >>> Reshape((2, -1), "x", "y").forward([np.ones(6)], {})[0].shape
    (2, 3)
    """

    resolved_from = ("shape",)

    def __init__(
        self,
        shape: int | tuple[int, ...],
        inputs: Keys,
        outputs: Keys,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if read_shape(shape) is None:
            raise ValueError(
                f"Reshape's shape must be an int or ints, at most one of them -1, but got "
                f"{shorten(shape)}."
            )
        self.shape = shape

    def apply(self, data: Any) -> Any:
        """Return one array in the new shape."""
        return np.reshape(data, self.shape)
