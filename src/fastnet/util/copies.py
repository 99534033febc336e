"""Copies of objects, whatever their classes say is worth copying."""

from __future__ import annotations

import copy
from typing import TypeVar

__all__ = ["twin"]

T = TypeVar("T")


def twin(item: T) -> T:
    """Copy an object with all of its attributes.

    Some classes tell `copy` only what is worth saving, which is not enough to run.

    Args:
        item: The object.

    Returns:
        Another one of its class, which shares the values of the attributes.

    >>> class Saved:
    ...     def __getstate__(self):
    ...         return {}
    >>> one = Saved()
    >>> one.size = 3
    >>> twin(one).size
    3
    """
    if not hasattr(item, "__dict__"):
        return copy.copy(item)
    made: T = type(item).__new__(type(item))
    vars(made).update(vars(item))
    return made
