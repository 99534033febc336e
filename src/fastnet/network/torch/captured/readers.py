"""Reads what objects that captured steps hold are made of."""

from __future__ import annotations

import inspect
from types import MemberDescriptorType
from typing import Any

from fastnet.backend.readers import value_of_slot
from fastnet.network.torch.captured.global_names import is_library

__all__ = [
    "Slots",
    "bound_to",
    "bytes_of",
    "has_not_begun",
    "is_buffer",
    "place_in",
    "settings_of",
    "slots_of",
    "wrapped_by",
]


def slots_of(cls: type) -> tuple[Any, ...]:
    """List what reads the slots that classes of a program's own have."""
    return tuple(
        part
        for base in cls.__mro__
        if not is_library(base.__module__)
        for part in vars(base).values()
        if isinstance(part, MemberDescriptorType)
    )


class Slots:
    """Reads the slots of an object.

    Args:
        cls: The class of the object.
    """

    def __init__(self, cls: type) -> None:
        self._slots = slots_of(cls)

    def __call__(self, value: Any) -> list[Any]:
        """Read them, in order."""
        return [value_of_slot(slot, value) for slot in self._slots]


def is_buffer(value: Any) -> bool:
    """Return whether the bytes of a value can be read."""
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True


def bytes_of(value: Any) -> list[Any]:
    """Read the bytes of a buffer."""
    return [memoryview(value).tobytes()]


def bound_to(value: Any) -> list[Any]:
    """Read what a function of C is bound to."""
    return [value.__self__]


def wrapped_by(value: Any) -> list[Any]:
    """Read the function of a static method, or a class method."""
    return [value.__func__]


def has_not_begun(value: Any) -> bool:
    """Return whether a generator has not begun."""
    return inspect.getgeneratorstate(value) == inspect.GEN_CREATED


def place_in(value: Any) -> list[Any]:
    """Return where a generator is, which none of those that have begun is any more."""
    return [has_not_begun(value)]


def settings_of(value: Any) -> list[Any]:
    """Read the settings of the groups of an optimizer."""
    groups = value.param_groups
    return [one for group in groups for name, one in group.items() if name != "params"]
