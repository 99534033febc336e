"""The principal branch of the Lambert W function, in any framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

# The end of the branch, -1 / e, by mantissa bits: the nearest number and the remainder. The
# difference of a close argument and the nearest number is exact.
_ENDS = {
    24: (-0.3678794503211975, 9.149755188170102e-09),
    53: (-0.36787944117144233, 1.2428753672788363e-17),
}
# The bound up to which `_series` is exact, by mantissa bits.
_NEAR = {24: 0.1, 53: 4e-3}
# Iterations by mantissa bits: each triples the correct bits, of which the first guess has six.
_ROUNDS = {24: 2, 53: 3}

# SuperLoss clips its argument, beta, slightly above the end of the branch, -2 / e.
MIN_BETA = -1.9999998 / math.e
LOG_CONFIDENCE_AT_MIN = 0.9995528530578068


class Functions(NamedTuple):
    """The functions of a framework; the first value of `where` and `maximum` is a tensor."""

    exp: Callable[[Any], Any]
    log1p: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    maximum: Callable[[Any, float], Any]
    where: Callable[[Any, Any, Any], Any]


def solve(z: Any, mantissa_bits: int, functions: Functions) -> Any:
    """Solve w * exp(w) = z for numbers of 24 or 53 mantissa bits; NaN without a solution."""
    exp, log1p, _, maximum, where = functions
    root = _root(z, mantissa_bits, functions)
    near = _series(root) - 1.0
    log = log1p(maximum(z, -0.3))
    far = log * (1.0 - log1p(log) / (log + 2.0))
    w = where(z < -0.2649, near, far)
    for _ in range(_ROUNDS[mantissa_bits]):
        # Halley's method, in a form that does not overflow.
        error = w - z * exp(-w)
        w_plus_1 = w + 1.0
        denominator = 2.0 * w_plus_1 * w_plus_1 - (w + 2.0) * error
        w = w - 2.0 * w_plus_1 * error / where(denominator != 0, denominator, 1.0)
    # Halley's method loses its precision next to the end of the branch.
    w = where(root < _NEAR[mantissa_bits], near, w)
    w = where(z == math.inf, z, w)
    # A rounded -1/e counts as the end of the branch.
    tolerance = 4 * 2.0 ** (1 - mantissa_bits)
    return where(z >= -(1 + tolerance) / math.e, w, math.nan)


def slope(z: Any, w: Any, mantissa_bits: int, functions: Functions) -> Any:
    """Return the derivative of w; it is finite at the end of the branch."""
    root = _root(z, mantissa_bits, functions)
    w_plus_1 = functions.where(root < _NEAR[mantissa_bits], _series(root), w + 1.0)
    return functions.exp(-w) / functions.maximum(w_plus_1, 2.0 ** (1 - mantissa_bits))


def _root(z: Any, mantissa_bits: int, functions: Functions) -> Any:
    """Return the square root of 2 * (e * z + 1)."""
    end, remainder = _ENDS[mantissa_bits]
    radicand = (z + -end) * (2 * math.e) + -2 * math.e * remainder
    # The derivative of the square root is infinite at 0.
    return functions.sqrt(functions.maximum(radicand, 2.0 ** (2 * (1 - mantissa_bits)) / 4))


def _series(root: Any) -> Any:
    """Return w + 1 near the end of the branch, by its series in the root."""
    total = root * (769 / 17280) - 43 / 540
    for factor in (11 / 72, -1 / 3, 1.0):
        total = total * root + factor
    return total * root
