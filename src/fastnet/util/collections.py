"""Conversion of values to lists and sets, and collections without None."""

from __future__ import annotations

from collections.abc import Collection, KeysView, Mapping
from typing import Any, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K")


def to_list(data: Any) -> list[Any]:
    """Convert a value, or a collection of values, to a list.

    Args:
        data: A list, tuple, set, frozenset or view of a dict's keys. Anything else, including a
            dict or a string, counts as one value.

    Returns:
        A list of the values. `data` itself if it is a list, an empty list if it is None.

    >>> to_list("x"), to_list(("x", "y")), to_list(None), to_list({"x": 1})
    (['x'], ['x', 'y'], [], [{'x': 1}])
    """
    if data is None:
        return []
    if isinstance(data, list):
        return data
    if isinstance(data, (tuple, set, frozenset, KeysView)):
        return list(data)
    return [data]


def to_set(data: Any) -> set[Any]:
    """Convert a value, or a collection of values, to a set.

    Args:
        data: A set, frozenset, list, tuple or view of a dict's keys. Anything else, including a
            string, counts as one value. All values must be hashable.

    Returns:
        A set of the values. `data` itself if it is a set, an empty set if it is None.

    >>> to_set("train"), to_set(["train"]), to_set(frozenset({"train"})), to_set(None)
    ({'train'}, {'train'}, {'train'}, set())
    """
    return data if isinstance(data, set) else set(to_list(data))


@overload
def filter_nones(ins: Mapping[K, T | None]) -> dict[K, T]: ...
@overload
def filter_nones(ins: set[T | None]) -> set[T]: ...
@overload
def filter_nones(ins: tuple[T | None, ...]) -> tuple[T, ...]: ...
@overload
def filter_nones(ins: list[T | None]) -> list[T]: ...
def filter_nones(ins: Collection[Any]) -> Collection[Any]:
    """Remove None from a collection.

    Other falsy values, such as 0, are kept.

    Args:
        ins: The collection. From a mapping, the entries whose value is None are removed.

    Returns:
        A new dict, set or tuple for a mapping, set or tuple, and a new list for anything else.

    >>> filter_nones([3, None, 0])
    [3, 0]
    >>> filter_nones({"a": 3, "b": None})
    {'a': 3}
    """
    if isinstance(ins, Mapping):
        return {key: value for key, value in ins.items() if value is not None}
    items = [item for item in ins if item is not None]
    if isinstance(ins, (set, frozenset)):
        return set(items)
    if isinstance(ins, tuple):
        return tuple(items)
    return items
