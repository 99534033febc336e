"""Arrays scaled to a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.numpyop.univariate.per_array import PerArray
from fastnet.types import Keys, Names


class Minmax(PerArray):
    """Scale each array linearly, so that its values range from `new_min` to `new_max`.

    See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of arrays.
        outputs: Key(s) of the results, float32, of the inputs' shapes.
        epsilon: The smallest range to divide by; a constant array becomes `new_min`.
        new_min: The smallest value of the result.
        new_max: The largest value of the result.

    Raises:
        AssertionError: If `new_max` is not more than `new_min`.
        ValueError: If an argument is not a number.

    >>> Minmax("x", "y").forward([np.array([1, 2, 5])], {})
    [array([0.  , 0.25, 1.  ], dtype=float32)]
    """

    resolved_from = ("epsilon", "new_min", "new_max")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mode: Names = None,
        ds_id: Names = None,
        epsilon: float = 1e-7,
        new_min: float = 0.0,
        new_max: float = 1.0,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        settings = {"epsilon": epsilon, "new_min": new_min, "new_max": new_max}
        for name, value in settings.items():
            if not is_number(value):
                raise ValueError(f"Minmax's {name} must be a number, not {shorten(value)}.")
        if not new_max > new_min:
            raise AssertionError(
                f"Minmax's new_max must be more than its new_min, but they are {shorten(new_max)} "
                f"and {shorten(new_min)}."
            )
        self.epsilon = epsilon
        self.new_min = new_min
        self.new_max = new_max

    def apply(self, data: Any) -> Any:
        """Return one array scaled."""
        minimum, maximum = np.min(data), np.max(data)
        scaled = (data - minimum) / max(maximum - minimum, self.epsilon)
        return (scaled * (self.new_max - self.new_min) + self.new_min).astype(np.float32)
