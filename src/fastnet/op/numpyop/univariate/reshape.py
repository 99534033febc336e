"""Arrays in another shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import lengths_of
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["Reshape"]


class Reshape(PerArray):
    """Gives arrays another shape.

    Args:
        shape: The shape of a sample. One length may be -1, for what is left.
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.

    Raises:
        ValueError: If `shape` is no shape; in a network also if there are not as many outputs as
            inputs.

    >>> Reshape((2, -1), "x", "y").forward([np.ones(6)], {})[0].shape
    (2, 3)
    """

    resolved_from = ("shape",)

    def __init__(
        self,
        shape: int | tuple[int, ...],
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if lengths_of(shape) is None:
            raise ValueError(
                f"Reshape's shape is a length or several, of which one can be -1, to be worked "
                f"out, but got {shorten(shape)}."
            )
        self.shape = shape

    def apply(self, data: Any) -> Any:
        """Reshape.

        Args:
            data: The array.

        Returns:
            The same values in the new shape.
        """
        return np.reshape(data, self.shape)
