"""Copies of objects, whatever their classes say is worth copying."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from types import MemberDescriptorType, ModuleType
from typing import Any, TypeVar

__all__ = ["put_attributes", "reconstructed", "saved_attributes", "twin"]

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


def reconstructed(item: T, memo: dict[int, Any]) -> T:
    """Copy an object as `copy.deepcopy` does where a class has no way of its own to be copied.

    Args:
        item: The object.
        memo: What was copied so far.

    Returns:
        The copy.
    """
    reduced: Any = item.__reduce_ex__(4)
    function, args, *rest = reduced
    made: T = function(*copy.deepcopy(args, memo))
    memo[id(item)] = made
    if rest and rest[0] is not None:
        state = copy.deepcopy(rest[0], memo)
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
        else:
            vars(made).update(state)
    return made


class _Named:
    """Stands for a module, which cannot be saved, and is one again where it is loaded.

    Args:
        module: The module.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return import_module, (self.module.__name__,)


def saved_attributes(item: object) -> dict[str, Any]:
    """Return the attributes of an object in a form that `copy` and `pickle` can take.

    Args:
        item: The object.

    Returns:
        A dict of its own; modules among the values have something in their place.
    """
    slots = {
        name: getattr(item, name)
        for base in type(item).__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and name != "__dict__" and hasattr(item, name)
    }
    return {name: _saved(value) for name, value in {**slots, **vars(item)}.items()}


def put_attributes(item: object, saved: Mapping[str, Any]) -> None:
    """Copy the attributes of one object to another, past any `__setattr__`.

    Args:
        item: The object.
        saved: What `saved_attributes` gave, or a copy of that.

    >>> import sys, types
    >>> one, other = types.SimpleNamespace(library=sys, size=3), types.SimpleNamespace()
    >>> put_attributes(other, saved_attributes(one))
    >>> other
    namespace(library=<module 'sys' (built-in)>, size=3)
    """
    for name, value in saved.items():
        # a shallow copy has what stands for a module, and not the module
        value = _put(value)
        if isinstance(getattr(type(item), name, None), MemberDescriptorType):
            object.__setattr__(item, name, value)
        else:
            vars(item)[name] = value


def _saved(value: Any) -> Any:
    if type(value) is tuple and any(isinstance(one, ModuleType) for one in value):
        return tuple(map(_saved, value))
    return _Named(value) if isinstance(value, ModuleType) else value


def _put(value: Any) -> Any:
    if type(value) is tuple and any(isinstance(one, _Named) for one in value):
        return tuple(map(_put, value))
    return value.module if isinstance(value, _Named) else value
