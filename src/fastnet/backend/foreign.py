"""Tensors of other frameworks, and arrays, on their way into a network."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, MutableMapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fastnet._nest import NestMap
from fastnet.util.tensors import to_number

__all__ = ["NUMPY", "adopter", "array_of"]

NUMPY = (np.ndarray, np.generic)
"""Numpy's own, of which ops are given tensors, but which come back as they were given."""

_PROTOCOLS = ("__dlpack__", "__array__", "__array_interface__")
# texts have no tensors in some frameworks, and what holds tensors is gone through by itself
_NEVER = (str, bytes, type, dict, list, tuple, set, frozenset, MutableMapping)


def adopter(own: tuple[type, ...], convert: Callable[[Any], Any]) -> NestMap:
    """Return a map over nests that turns foreign tensors and arrays into a framework's own tensors.

    Args:
        own: The classes that the framework takes as they are.
        convert: Makes a tensor of something that has DLPack or the array protocol; gives None where
            it cannot, and then that stays.

    Returns:
        The map. It knows a class that it has seen before by a look-up.
    """

    class Foreign(metaclass=ABCMeta):  # noqa: B024 - it is asked about classes, and never made
        """Whatever says that it stands for an array, and is not the framework's own."""

        @classmethod
        def __subclasshook__(cls, other: type, /) -> bool:
            if issubclass(other, (*own, *_NEVER)) or is_dataclass(other):
                return False
            return any(hasattr(other, name) for name in _PROTOCOLS)

    def adopt(value: Any) -> Any:
        tensor = convert(value)
        return value if tensor is None else tensor

    return NestMap(Foreign, adopt)


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Read what stands for an array.

    Args:
        value: A tensor of any framework on any device, an array, or what gives one.

    Returns:
        A new array, or None where numpy can make none. A bfloat16 tensor of torch becomes float32.
    """
    try:
        return to_number(value)
    except Exception:  # such as those of a device that numpy cannot reach
        return None
