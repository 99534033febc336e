"""A function over every leaf of a nest, by plain recursion."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any


def unless(
    leaf_type: type, name: str, value: object, fn: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def apply(leaf: Any) -> Any:
        if type(leaf) is leaf_type and getattr(leaf, name) == value:
            return leaf
        return fn(leaf)

    return apply


class NestMap:
    def __init__(self, leaf_type: type, fn: Callable[[Any], Any], when: str | None = None) -> None:
        self.leaf_type = leaf_type
        self.fn = fn
        self.when = when

    def __call__(self, data: Any) -> Any:
        if isinstance(data, self.leaf_type):
            return self._map_leaf(data)
        if isinstance(data, dict):
            return self._refill(data, list(data.items()))
        if isinstance(data, list):
            return self._refill(data, list(enumerate(data)))
        if isinstance(data, tuple):
            parts = [self(part) for part in data]
            if all(new is old for new, old in zip(parts, data, strict=True)):
                return data
            return self._remake_tuple(data, parts)
        if isinstance(data, set):
            parts = [self(part) for part in list(data)]
            result = copy.copy(data)
            result.clear()
            result.update(parts)
            return result
        if isinstance(data, frozenset) and self._holds_leaf(data):
            return type(data)([self(part) for part in data])
        if dataclasses.is_dataclass(data) and self._holds_leaf(data):
            return self._remake_dataclass(data)
        return data

    def _map_leaf(self, leaf: Any) -> Any:
        if self.when is not None and not getattr(leaf, self.when):
            return leaf
        if isinstance(self.fn, types.MethodDescriptorType):
            return getattr(leaf, self.fn.__name__)()
        return self.fn(leaf)

    def _refill(self, data: Any, items: list[tuple[Any, Any]]) -> Any:
        result = copy.copy(data)
        for place, value in items:
            result[place] = self(value)
        return result

    @staticmethod
    def _remake_tuple(data: Any, parts: list[Any]) -> Any:
        cls = type(data)
        if cls is tuple:
            return tuple(parts)
        if hasattr(cls, "n_sequence_fields"):
            # the fields that are attributes but not parts travel in the second argument
            return cls(parts, data.__reduce__()[1][1])
        result = tuple.__new__(cls, parts)
        vars(result).update(vars(data)) if hasattr(data, "__dict__") else None
        return result

    def _remake_dataclass(self, data: Any) -> Any:
        result = object.__new__(type(data))
        if hasattr(data, "__dict__"):
            vars(result).update(vars(data))
        for field in dataclasses.fields(data):
            if hasattr(data, field.name):
                object.__setattr__(result, field.name, self(getattr(data, field.name)))
        return result

    def _holds_leaf(self, data: Any) -> bool:
        if isinstance(data, self.leaf_type):
            return True
        if isinstance(data, dict):
            return any(self._holds_leaf(value) for value in data.values())
        if isinstance(data, list | tuple | set | frozenset):
            return any(self._holds_leaf(part) for part in data)
        if dataclasses.is_dataclass(data) and not isinstance(data, type):
            return any(
                self._holds_leaf(getattr(data, field.name, None))
                for field in dataclasses.fields(data)
            )
        return False
