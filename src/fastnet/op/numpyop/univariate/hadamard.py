"""Class indices as Hadamard codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.op.hadamard_codes import hadamard_codes, resolve_code_length
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["Hadamard"]


class Hadamard(PerArray):
    """Turns class indices into codes that differ from each other in half of their positions.

    `fastnet.op.tensorop.UnHadamard` turns what a model predicts of them into probabilities.

    Args:
        inputs: The key or keys of indices, each an int or an array of ints.
        outputs: The key or keys to write, as many; 1 or -1, float32, of shape
            (..., code_length), where axes of length 1 are left out of the indices' shape.
        n_classes: How many classes there are.
        code_length: The length of the codes, a power of 2. None for the least that is enough.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.

    Raises:
        ValueError: If the length is no power of 2 or too short; in a network also if there are not
            as many outputs as inputs.

    >>> Hadamard("x", "y", n_classes=2).forward([1], {})
    [array([ 1., -1.], dtype=float32)]
    """

    resolved_from = ("n_classes", "code_length")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        n_classes: int,
        code_length: int | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.n_classes = n_classes
        self.code_length = resolve_code_length("Hadamard", n_classes, code_length)
        self._codes = hadamard_codes(self.code_length)[:n_classes]

    def apply(self, data: Any) -> Any:
        """Look the codes up.

        Args:
            data: An index, or an array of indices.

        Returns:
            A code for each.
        """
        return self._codes[np.squeeze(np.array(data)).astype(np.int64)]
