"""Permutation of the axes of images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import read_permutation
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class ChannelTranspose(PerArray):
    """Permute the axes of samples, by default from channels last to channels first.

    See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of arrays with as many axes as `axes` has.
        outputs: Key(s) of the results.
        axes: For each axis of a result, the axis of the sample, as in `numpy.transpose`.

    Raises:
        ValueError: If `axes` does not contain each axis once.

    >>> ChannelTranspose("x", "y").forward([np.ones((4, 5, 3))], {})[0].shape
    (3, 4, 5)
    """

    resolved_from = ("axes",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mode: Names = None,
        ds_id: Names = None,
        axes: Iterable[int] = (2, 0, 1),
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        order = read_permutation(axes)
        if not order:
            raise ValueError(
                f"ChannelTranspose's axes must contain each axis of a sample once, counted from 0, "
                f"but got {shorten(axes)}."
            )
        self.axes = tuple(order)

    def apply(self, data: Any) -> Any:
        """Return one array with its axes permuted."""
        return np.transpose(data, self.axes)
