"""Values as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class ToArray(PerArray):
    """Convert numbers, lists and similar values to arrays. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of values.
        outputs: Key(s) of the arrays.
        dtype: The dtype of the arrays. None to let numpy choose.

    Raises:
        ValueError: If `dtype` is not a dtype of numpy.

    >>> ToArray("x", "y", dtype="float32").forward([[1, 2]], {})
    [array([1., 2.], dtype=float32)]
    """

    resolved_from = ("dtype",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mode: Names = None,
        ds_id: Names = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        try:
            np.dtype(dtype)
        except TypeError as error:
            raise ValueError(
                f"ToArray's dtype must be a dtype of numpy, not {shorten(dtype)}."
            ) from error
        self.dtype = dtype

    def apply(self, data: Any) -> Any:
        """Return one value as a new array."""
        return np.array(data, dtype=self.dtype)
