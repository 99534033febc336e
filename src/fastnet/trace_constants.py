"""Attributes of the constants of a trace, and snapshots of the objects that constants hold."""

from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict, UserDict, UserList
from collections.abc import MutableMapping
from enum import Enum
from functools import partial
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any

from fastnet.guards import Snapshot, token_of

__all__ = ["attribute_tokens", "snapshot_of_constant"]

# Classes of constants, and of containers, that have no attributes of their own.
_ATOMS = (NoneType, bool, int, float, complex, str, bytes, EllipsisType)
_BARE = {*_ATOMS, dict, list, tuple, OrderedDict, Counter, ChainMap, UserDict, UserList}
_FUNCTIONS = (FunctionType, MethodType, partial)
# Compared by identity.
_NAMED = (type, Enum, ModuleType, BuiltinFunctionType)


def snapshot_of_constant(value: Any) -> tuple[dict[str, Any], Snapshot] | None:
    """Return the tokens of a value's attributes and a snapshot of what it holds, or None."""
    if type(value) in _BARE or isinstance(value, _NAMED):
        return None
    held = [value] if isinstance(value, _FUNCTIONS) else list(_attributes_of(value).values())
    if isinstance(value, (set, frozenset)):
        held += [member for member in value if type(member) not in _ATOMS]
    return (attribute_tokens(value), Snapshot([("", one) for one in held])) if held else None


def attribute_tokens(value: Any) -> dict[str, Any]:
    """Return what is equal for two values only if their attributes are."""
    if isinstance(value, _FUNCTIONS):
        return {}
    return {name: token_of(part) for name, part in _attributes_of(value).items()}


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a value that are not part of its form."""
    attributes = dict(getattr(value, "__dict__", ()))
    for base in type(value).__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, slot in vars(base).items():
            if type(slot) is MemberDescriptorType and hasattr(value, name):
                attributes.setdefault(name, getattr(value, name))
    for name in getattr(type(value), "__dataclass_fields__", ()):
        attributes.pop(name, None)
    if isinstance(value, MutableMapping) and not isinstance(value, dict):
        # An attribute that is a container holds the mapping's items, which are compared already.
        return {name: part for name, part in attributes.items() if type(part) in _ATOMS}
    return attributes
