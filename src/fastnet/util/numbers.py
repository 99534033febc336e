"""What counts as a whole number, and as the same constant."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

__all__ = ["same_constant", "whole_number"]


def whole_number(value: object) -> int | None:
    """Read a whole number, by its type.

    Args:
        value: An int, Python's or numpy's, or anything else that stands for one.

    Returns:
        The int; None for anything else. A truth value is no number.

    >>> import numpy as np
    >>> whole_number(np.int64(3)), whole_number(3.0), whole_number(True)
    (3, None, None)
    """
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def same_constant(one: Any, other: Any) -> bool:
    """Return whether two values of one class are the same constant: 0.0 and -0.0 are not.

    Args:
        one: A value.
        other: Another one of its class.

    >>> same_constant(0.0, -0.0), same_constant(float("nan"), float("nan")), same_constant("a", "a")
    (False, True, True)
    """
    if isinstance(one, float):
        same_sign = math.copysign(1.0, one) == math.copysign(1.0, other)
        return same_sign and (one == other or (one != one and other != other))
    if isinstance(one, complex):
        return same_constant(one.real, other.real) and same_constant(one.imag, other.imag)
    return bool(one == other)
