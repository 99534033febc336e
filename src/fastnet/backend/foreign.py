"""Conversion of arrays, and of tensors of other frameworks, on their way into a network."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, MutableMapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fastnet._nest import NestMap
from fastnet.util.tensors import to_number

NUMPY = (np.ndarray, np.generic)
"""The classes of numpy's arrays and scalars, which a network converts to tensors and back."""

_PROTOCOLS = ("__dlpack__", "__array__", "__array_interface__")
# Strings have no tensors in torch, and a NestMap walks containers itself.
_EXCLUDED = (str, bytes, type, dict, list, tuple, set, frozenset, MutableMapping)


def adopter(native_types: tuple[type, ...], convert: Callable[[Any], Any]) -> NestMap:
    """Return a map over nests that converts everything array-like to a framework's tensors.

    Instances of `native_types` stay, and so does a value for which `convert` returns None.
    """

    class Foreign(metaclass=ABCMeta):  # noqa: B024 - only used for issubclass
        """Matches classes with DLPack or an array protocol; the result is cached per class."""

        @classmethod
        def __subclasshook__(cls, other: type, /) -> bool:
            if issubclass(other, (*native_types, *_EXCLUDED)) or is_dataclass(other):
                return False
            return any(hasattr(other, name) for name in _PROTOCOLS)

    def adopt(value: Any) -> Any:
        tensor = convert(value)
        return value if tensor is None else tensor

    return NestMap(Foreign, adopt)


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Copy a tensor or array to numpy (bfloat16 as float32), or return None if numpy cannot."""
    try:
        return to_number(value)
    except Exception:  # for example, of a device that numpy cannot read
        return None
