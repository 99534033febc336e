"""Class indices as vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["Onehot"]


class Onehot(PerArray):
    """Turns class indices into vectors with a 1 at the index.

    Args:
        inputs: The key or keys of indices, each an int or an array of ints.
        outputs: The key or keys to write, as many; shape (..., num_classes), float32, or
            (num_classes,) for a single index.
        num_classes: How many classes there are.
        label_smoothing: How much of the 1 is shared out among all classes, from 0 to 1.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.

    Raises:
        ValueError: If a number is out of its range; in a network also if there are not as many
            outputs as inputs.

    >>> Onehot("x", "y", num_classes=3).forward([2], {})
    [array([0., 0., 1.], dtype=float32)]
    """

    resolved_from = ("num_classes", "label_smoothing")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        num_classes: int,
        label_smoothing: float = 0.0,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(num_classes) or num_classes < 1:
            raise ValueError(
                f"Onehot's num_classes is an int of at least 1, not {shorten(num_classes)}."
            )
        if not is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"Onehot's label_smoothing is from 0 to 1, not {shorten(label_smoothing)}."
            )
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing

    def apply(self, data: Any) -> Any:
        """Make the vectors.

        Args:
            data: An index, or an array of indices.

        Returns:
            A vector for each.

        Raises:
            AssertionError: If an index is no int, or there is no such class.
        """
        indices = np.atleast_1d(data)
        if indices.dtype.kind not in "iu":
            raise AssertionError(
                f"Onehot's indices are ints, but it got an array of type {indices.dtype}."
            )
        if indices.max() >= self.num_classes:
            raise AssertionError(
                f"Onehot has {self.num_classes} classes, but got the index {indices.max()}."
            )
        if indices.size == 1:
            indices = indices[0]
        vectors = np.eye(self.num_classes, dtype=np.float32)[indices]
        if self.label_smoothing:
            shared = self.label_smoothing / self.num_classes
            vectors = np.where(vectors != 0, 1.0 - self.label_smoothing + shared, shared)
        return vectors.astype(np.float32)
