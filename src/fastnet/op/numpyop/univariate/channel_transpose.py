"""Axes of images in another order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import axes_in_order
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["ChannelTranspose"]


class ChannelTranspose(PerArray):
    """Puts the axes of a sample into another order.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.
        axes: For each axis of a result, which axis of the sample it is. As it is, it puts the
            channels of an image first.

    Raises:
        ValueError: If `axes` leave out an axis or name one twice; in a network also if there are
            not as many outputs as inputs.

    >>> ChannelTranspose("x", "y").forward([np.ones((4, 5, 3))], {})[0].shape
    (3, 4, 5)
    """

    resolved_from = ("axes",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
        axes: Iterable[int] = (2, 0, 1),
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        order = axes_in_order(axes)
        if not order:
            raise ValueError(
                f"ChannelTranspose's axes are each axis of a sample once, in any order, counted "
                f"from 0, but got {shorten(axes)}."
            )
        self.axes = tuple(order)

    def apply(self, data: Any) -> Any:
        """Reorder the axes.

        Args:
            data: The array.

        Returns:
            The array with its axes in the new order.
        """
        return np.transpose(data, self.axes)
