"""Maps functions over nested containers by recursion."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, MutableMapping
from typing import Any


def unless(
    leaf_type: type, name: str, value: object, fn: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def apply(leaf: Any) -> Any:
        if type(leaf) is leaf_type and getattr(leaf, name) == value:
            return leaf
        return fn(leaf)

    return apply


def map_leaves(data: Any, fn: Callable[[Any], Any]) -> Any:
    parts = parts_of(data)
    if parts is None:
        return fn(data)
    return remade(data, parts, lambda part: map_leaves(part, fn))


def leaves_of(data: Any, builtin_only: bool = False) -> list[Any]:
    parts = parts_of(data)
    if parts is None or (
        builtin_only and type(data) not in (list, dict) and not isinstance(data, tuple)
    ):
        return [data]
    return [leaf for _, part in parts for leaf in leaves_of(part, builtin_only)]


def parts_of(data: Any) -> list[tuple[Any, Any]] | None:
    """List the parts of a container, each with its key, index or name; None for other values."""
    if isinstance(data, MutableMapping):
        return list(data.items())
    if isinstance(data, list | tuple | set | frozenset):
        return list(enumerate(data))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        names = [field.name for field in dataclasses.fields(data)]
        return [(name, getattr(data, name)) for name in names if hasattr(data, name)]
    return None


def remade(data: Any, parts: list[tuple[Any, Any]], fn: Callable[[Any], Any]) -> Any:
    """Return a container of the same class with a function applied to each part."""
    if isinstance(data, MutableMapping | list):
        result = own_copy(data)
        for key, part in parts:
            result[key] = fn(part)
        return result
    values = [fn(part) for _, part in parts]
    if hasattr(data, "n_sequence_fields"):
        # The second argument has the fields that are attributes but not items.
        return type(data)(values, data.__reduce__()[1][1])
    result = bare(data, values)
    names = {name for cls in type(data).__mro__ for name in getattr(cls, "__slots__", ())}
    for name in names.union(getattr(data, "__dict__", ())) - {"__dict__", "__weakref__"}:
        if hasattr(data, name):
            object.__setattr__(result, name, getattr(data, name))
    if dataclasses.is_dataclass(data):
        for (name, _), value in zip(parts, values, strict=True):
            object.__setattr__(result, name, value)
    return result


def bare(data: Any, values: list[Any]) -> Any:
    """Create an object by the `__new__` of the built-in class, not of a derived one."""
    cls = type(data)
    if isinstance(data, tuple):
        return tuple.__new__(cls, values)
    if isinstance(data, frozenset):
        return frozenset.__new__(cls, values)
    if isinstance(data, set):
        made: set[Any] = set.__new__(cls)
        set.update(made, values)
        return made
    return object.__new__(cls)


def own_copy(data: Any) -> Any:
    """Return a shallow copy of a container that shares no storage with it."""
    if isinstance(data, dict | list | collections.UserDict):
        result = copy.copy(data)
    else:
        stores = data.maps if isinstance(data, collections.ChainMap) else [data]
        items = [item for store in stores for item in store.items()]
        result = copy.deepcopy(data, {id(part): part for item in items for part in item})
    if result is data or type(result) is not type(data):
        name = type(data).__name__
        raise TypeError(
            f"a copy of a {name} is not another {name}: its copying returns something else"
        )
    return result


class NestMap:
    def __init__(self, leaf_type: type, fn: Callable[[Any], Any], when: str | None = None) -> None:
        self.leaf_type = leaf_type
        self.fn = fn
        self.when = when

    def __call__(self, data: Any) -> Any:
        if isinstance(data, self.leaf_type):
            return self._map_leaf(data)
        parts = parts_of(data)
        if parts is None:
            return data
        if isinstance(data, tuple):
            values = [self(part) for _, part in parts]
            if all(new is old for new, old in zip(values, data, strict=True)):
                return data
            remaining = iter(values)
            return remade(data, parts, lambda part: next(remaining))
        if isinstance(data, dict | list | set) or self._holds_leaf(data):
            return remade(data, parts, self)
        return data

    def _map_leaf(self, leaf: Any) -> Any:
        if self.when is not None and not getattr(leaf, self.when):
            return leaf
        if isinstance(self.fn, types.MethodDescriptorType):
            return getattr(leaf, self.fn.__name__)()
        return self.fn(leaf)

    def _holds_leaf(self, data: Any) -> bool:
        if isinstance(data, self.leaf_type):
            return True
        return any(self._holds_leaf(part) for _, part in parts_of(data) or ())
