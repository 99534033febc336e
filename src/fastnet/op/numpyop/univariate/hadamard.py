"""Class indices as Hadamard codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.op.hadamard_codes import hadamard_codes, resolve_code_length
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class Hadamard(PerArray):
    """Encode class indices as Hadamard codes, which differ in at least half of their bits.

    `fastnet.op.tensorop.UnHadamard` converts predicted codes into probabilities. See `NumpyOp` for
    `mode` and `ds_id`.

    Args:
        inputs: Key(s) of class indices, each an int or an array of ints.
        outputs: Key(s) of the codes of -1 and 1, float32, shape (..., code_length), without the
            indices' axes of length 1.
        n_classes: The number of classes.
        code_length: The length of the codes, a power of 2. None for the shortest possible.

    Raises:
        ValueError: If `code_length` is not a power of 2, or too short for the classes.

    >>> Hadamard("x", "y", n_classes=2).forward([1], {})
    [array([ 1., -1.], dtype=float32)]
    """

    resolved_from = ("n_classes", "code_length")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        n_classes: int,
        code_length: int | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.n_classes = n_classes
        self.code_length = resolve_code_length("Hadamard", n_classes, code_length)
        self._codes = hadamard_codes(self.code_length)[:n_classes]

    def apply(self, data: Any) -> Any:
        """Return the codes for one array of indices."""
        indices = np.squeeze(np.array(data)).astype(np.int64)
        if (indices < 0).any():
            raise IndexError(
                f"Hadamard has {self.n_classes} classes, but got the index {indices.min()}."
            )
        return self._codes[indices]
