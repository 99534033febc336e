"""Arrays stretched to a range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.numpyop.per_array import PerArray

__all__ = ["Minmax"]


class Minmax(PerArray):
    """Shifts and scales arrays, each by itself, so that they reach from one value to another.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many; float32.
        mode: The mode or modes to run in; "!mode" for all but one; None for all.
        ds_id: The dataset id or ids to run for; "!id" for all but one; None for all.
        epsilon: The least range that is scaled; an array of one value only stays at the least.
        new_min: The least value afterwards.
        new_max: The largest value afterwards.

    Raises:
        AssertionError: If `new_max` is not more than `new_min`.
        ValueError: If a setting is no number; in a network also if there are not as many outputs as
            inputs.

    >>> Minmax("x", "y").forward([np.array([1, 2, 5])], {})
    [array([0.  , 0.25, 1.  ], dtype=float32)]
    """

    resolved_from = ("epsilon", "new_min", "new_max")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
        epsilon: float = 1e-7,
        new_min: float = 0.0,
        new_max: float = 1.0,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        settings = {"epsilon": epsilon, "new_min": new_min, "new_max": new_max}
        for name, value in settings.items():
            if not is_number(value):
                raise ValueError(f"Minmax's {name} is a number, not {shorten(value)}.")
        if not new_max > new_min:
            raise AssertionError(
                f"Minmax's new_max is more than its new_min, but they are {shorten(new_max)} and "
                f"{shorten(new_min)}."
            )
        self.epsilon = epsilon
        self.new_min = new_min
        self.new_max = new_max

    def apply(self, data: Any) -> Any:
        """Stretch.

        Args:
            data: The array.

        Returns:
            The stretched array.
        """
        least, largest = np.min(data), np.max(data)
        scaled = (data - least) / max(largest - least, self.epsilon)
        return (scaled * (self.new_max - self.new_min) + self.new_min).astype(np.float32)
