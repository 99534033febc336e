"""Reads what objects of other kinds than containers are made of, as lists that can be compared."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ABSENT",
    "array_of",
    "items_of",
    "method_of",
    "partial_of",
    "value_of_context",
    "value_of_slot",
]

ABSENT: Any = object()
"""Stands for what is not there."""


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
    """Return what an object has in a slot, or `ABSENT`."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return ABSENT
