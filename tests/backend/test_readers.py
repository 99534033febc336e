"""Objects as lists of comparable parts."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from types import MappingProxyType

import numpy as np

from fastnet.backend import readers


class Slotted:
    __slots__ = ("empty", "filled")

    def method(self) -> None:
        """Do nothing."""


def test_arrays_mappings_and_partials() -> None:
    array = np.arange(6, dtype="int16").reshape(2, 3)
    assert readers.array_of(array) == [f"{array.dtype.str} (2, 3)", array.tobytes()]
    assert readers.items_of(MappingProxyType({"a": 1, "b": 2})) == ["a", "b", 1, 2]
    assert readers.partial_of(functools.partial(max, 1, key=len)) == [max, 1, "key", len]


def test_methods_and_slots() -> None:
    owner = Slotted()
    owner.filled = 1
    assert readers.method_of(owner.method) == [owner, Slotted.method]
    assert readers.value_of_slot(Slotted.filled, owner) == 1
    assert readers.value_of_slot(Slotted.empty, owner) is readers.ABSENT


def test_context_variables() -> None:
    variable: ContextVar[int] = ContextVar("variable")
    assert readers.value_of_context(variable) == [readers.ABSENT]
    variable.set(2)
    assert readers.value_of_context(variable) == [2]
