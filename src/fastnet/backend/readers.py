"""Functions that read objects as lists of comparable parts."""

from __future__ import annotations

import math
from typing import Any

__all__ = [
    "ABSENT",
    "array_of",
    "items_of",
    "method_of",
    "partial_of",
    "same_constant",
    "value_of_context",
    "value_of_slot",
]

ABSENT: Any = object()
"""The value of a missing entry."""


def array_of(value: Any) -> list[Any]:
    """Read the type, the shape and the bytes of an array."""
    return [f"{value.dtype.str} {value.shape}", value.tobytes()]


def items_of(value: Any) -> list[Any]:
    """Read the keys, and then the values, of a mapping."""
    return [*value.keys(), *value.values()]


def method_of(value: Any) -> list[Any]:
    """Read the object and the function of a method."""
    return [value.__self__, value.__func__]


def partial_of(value: Any) -> list[Any]:
    """Read the function and the arguments of a partial."""
    return [value.func, *value.args, *value.keywords, *value.keywords.values()]


def value_of_context(value: Any) -> list[Any]:
    """Read the value of a context variable."""
    return [value.get(ABSENT)]


def value_of_slot(slot: Any, owner: Any) -> Any:
    """Return the value of an object's slot, or `ABSENT`."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return ABSENT


def same_constant(one: Any, other: Any) -> bool:
    """Return whether two values of one class are the same constant: 0.0 and -0.0 are not.

    >>> same_constant(0.0, -0.0), same_constant(float("nan"), float("nan")), same_constant("a", "a")
    (False, True, True)
    """
    if isinstance(one, float):
        same_sign = math.copysign(1.0, one) == math.copysign(1.0, other)
        return same_sign and (one == other or (one != one and other != other))
    if isinstance(one, complex):
        return same_constant(one.real, other.real) and same_constant(one.imag, other.imag)
    return bool(one == other)
