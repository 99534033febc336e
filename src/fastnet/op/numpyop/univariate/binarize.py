"""Arrays of zeros and ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["Binarize"]


class Binarize(PerArray):
    """Tells what reaches a threshold.

    Args:
        threshold: The least value that counts.
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many; 1 where it is reached and else 0, float32.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.

    Raises:
        ValueError: If `threshold` is no number; in a network also if there are not as many outputs
            as inputs.

    >>> Binarize(0.5, "x", "y").forward([np.array([0.2, 0.5])], {})
    [array([0., 1.], dtype=float32)]
    """

    resolved_from = ("threshold",)

    def __init__(
        self,
        threshold: float,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_number(threshold):
            raise ValueError(f"Binarize's threshold is a number, not {shorten(threshold)}.")
        self.threshold = threshold

    def apply(self, data: Any) -> Any:
        """Compare.

        Args:
            data: The array.

        Returns:
            Zeros and ones.
        """
        return (data >= self.threshold).astype(np.float32)
