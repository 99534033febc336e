"""Anything as an array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["ToArray"]


class ToArray(PerArray):
    """Turns numbers, lists and the like into arrays.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.
        dtype: The type of the arrays, by its name. None for what numpy makes of the values.

    Raises:
        ValueError: If numpy has no such type; in a network also if there are not as many outputs as
            inputs.

    >>> ToArray("x", "y", dtype="float32").forward([[1, 2]], {})
    [array([1., 2.], dtype=float32)]
    """

    resolved_from = ("dtype",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        try:
            np.dtype(dtype)
        except TypeError as error:
            raise ValueError(
                f"ToArray's dtype is a type of numpy's, not {shorten(dtype)}."
            ) from error
        self.dtype = dtype

    def apply(self, data: Any) -> Any:
        """Convert.

        Args:
            data: The value.

        Returns:
            A new array.
        """
        return np.array(data, dtype=self.dtype)
