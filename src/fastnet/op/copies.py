"""Copying and pickling of ops, and of objects that hide attributes from `copy`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from types import MemberDescriptorType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def shallow_copy(item: T) -> T:
    """Copy an object with all of its attributes, also those that its `__getstate__` leaves out."""
    if not hasattr(item, "__dict__"):
        return copy.copy(item)
    copied: T = type(item).__new__(type(item))
    vars(copied).update(vars(item))
    return copied


def default_deepcopy(item: T, memo: dict[int, Any]) -> T:
    """Copy an object as `copy.deepcopy` does for a class without `__deepcopy__`.

    The items of lists and dicts, which `__reduce_ex__` returns beside the state, are left out.
    """
    reduced: Any = item.__reduce_ex__(4)
    function, args = reduced[:2]
    state = reduced[2] if len(reduced) > 2 else None
    copied: T = function(*copy.deepcopy(args, memo))
    memo[id(item)] = copied
    if state is not None:
        state = copy.deepcopy(state, memo)
        if hasattr(copied, "__setstate__"):
            copied.__setstate__(state)
        else:
            vars(copied).update(state)
    return copied


class _ModuleReference:
    """Replaces a module, which cannot be pickled, and unpickles as that module."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return import_module, (self.module.__name__,)


def get_state(item: object) -> dict[str, Any]:
    """Return an object's attributes and slots, with modules in a form that can be pickled."""
    slots = {
        name: getattr(item, name)
        for base in type(item).__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and name != "__dict__" and hasattr(item, name)
    }
    return {name: _replace_modules(value) for name, value in {**slots, **vars(item)}.items()}


def set_state(item: object, state: Mapping[str, Any]) -> None:
    """Set the attributes that `get_state` returned, without calling `__setattr__`.

    >>> import sys, types
    >>> source = types.SimpleNamespace(library=sys, size=3)
    >>> target = types.SimpleNamespace()
    >>> set_state(target, get_state(source))
    >>> target
    namespace(library=<module 'sys' (built-in)>, size=3)
    """
    for name, value in state.items():
        # `copy.copy` passes the state on without pickling it, so it still has the references.
        value = _restore_modules(value)
        if isinstance(getattr(type(item), name, None), MemberDescriptorType):
            object.__setattr__(item, name, value)
        else:
            vars(item)[name] = value


def _replace_modules(value: Any) -> Any:
    if type(value) is tuple and any(isinstance(part, ModuleType) for part in value):
        return tuple(map(_replace_modules, value))
    return _ModuleReference(value) if isinstance(value, ModuleType) else value


def _restore_modules(value: Any) -> Any:
    if type(value) is tuple and any(isinstance(part, _ModuleReference) for part in value):
        return tuple(map(_restore_modules, value))
    return value.module if isinstance(value, _ModuleReference) else value
