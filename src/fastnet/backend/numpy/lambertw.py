"""The Lambert W function of numpy arrays."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENDS", "LEAST", "LEAST_LOG", "NEAR", "lambertw", "series"]

Array: TypeAlias = NDArray[Any]

# The end of the branch, -1 / e, by mantissa bits: the nearest number and the rest. Close numbers
# have an exact difference.
ENDS = {
    24: (-0.3678794503211975, 9.149755188170102e-09),
    53: (-0.36787944117144233, 1.2428753672788363e-17),
}

# The bound up to which `series` is exact, by mantissa bits.
NEAR = {24: 0.1, 53: 4e-3}

# SuperLoss clips its argument slightly above the end of the branch, -2 / e. The logarithm of the
# confidence is `LEAST_LOG` there.
LEAST = -1.9999998 / math.e
LEAST_LOG = 0.9995528530578068

# Each iteration triples the number of correct digits, of which the first guess has two.
ROUNDS = 4


def lambertw(tensor: Array) -> Array:
    z = np.asarray(tensor)
    own = z.dtype if z.dtype.kind == "f" else np.dtype("float64")
    # A rounded -1/e counts as the end of the branch.
    room = 4 * float(np.finfo(own).eps)
    wide = z.astype("float64")
    with np.errstate(all="ignore"):
        w = np.where(wide == math.inf, wide, _solve(wide))
    solved: Array = np.where(wide < -(1 + room) / math.e, math.nan, w).astype(own)
    return solved


def series(root: Any) -> Any:
    """Return w + 1 near the end of the branch, by its series in sqrt(2 * (e * z + 1))."""
    total = root * (769 / 17280) - 43 / 540
    for factor in (11 / 72, -1 / 3, 1.0):
        total = total * root + factor
    return total * root


def _solve(z: Array) -> Array:
    below = np.maximum(2 * (1 + math.e * z), 0)
    root = np.sqrt(below)
    near = -1 + root - below / 3 + 11 / 72 * below * root
    log = np.log1p(np.maximum(z, -0.3))
    far = log * (1 - np.log1p(log) / (2 + log))
    w: Array = np.where(z < -0.2649, near, far)
    for _ in range(ROUNDS):
        # Halley's rule, where nothing overflows
        error = w - z * np.exp(-w)
        bottom = 2 * (w + 1) ** 2 - (w + 2) * error
        w = w - 2 * (w + 1) * error / np.where(bottom == 0, 1, bottom)
    return w
