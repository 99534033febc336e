"""Arrays with a new axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_int
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["ExpandDims"]


class ExpandDims(PerArray):
    """Gives arrays a new axis of length 1.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.
        axis: Where the new axis is to be.

    Raises:
        ValueError: If `axis` is no int; in a network also if there are not as many outputs as
            inputs.

    >>> ExpandDims("x", "y").forward([np.ones(2)], {})[0].shape
    (2, 1)
    """

    resolved_from = ("axis",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(axis):
            raise ValueError(f"ExpandDims's axis is an int, not {shorten(axis)}.")
        self.axis = axis

    def apply(self, data: Any) -> Any:
        """Add the axis.

        Args:
            data: The array.

        Returns:
            The array with one axis more.
        """
        return np.expand_dims(data, self.axis)
