"""Random nests of every container that a nest may be made of."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

from hypothesis import strategies as st

from tests.containers import Ice, Labels, Plain, Point, Slotted, SlottedIce


class Row(dict[Any, Any]):
    pass


class Leaf:
    """What stands for a tensor."""

    def __init__(self, value: int, live: bool = True) -> None:
        self.value = value
        self.live = live

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value}, {self.live})"


class Derived(Leaf):
    pass


leaves = st.builds(Leaf, st.integers(0, 9), st.booleans()) | st.builds(Derived, st.integers(0, 9))
others = st.none() | st.integers() | st.text(max_size=2) | st.booleans() | st.just(object())
hashable = st.recursive(
    leaves | others,
    lambda parts: (
        st.frozensets(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.builds(Point, parts, parts)
        | st.builds(Ice, parts, parts)
        | st.builds(SlottedIce, parts, parts)
    ),
    max_leaves=6,
)


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(parts, max_size=3)
    dicts = st.dictionaries(st.text(max_size=2) | st.integers(), parts, max_size=3)
    return st.one_of(
        lists,
        lists.map(Labels),
        lists.map(tuple),
        st.builds(Point, parts, parts),
        parts.map(lambda part: time.struct_time((part, *range(8)))),
        dicts,
        dicts.map(Row),
        dicts.map(collections.OrderedDict),
        dicts.map(lambda items: collections.defaultdict(list, items)),
        dicts.map(collections.UserDict),
        dicts.map(collections.ChainMap),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        *(st.builds(cls, parts, parts) for cls in (Plain, Ice, Slotted, SlottedIce)),
    )


nests = st.recursive(hashable, containers, max_leaves=12)


def parts_of(data: Any) -> Iterator[tuple[Any, Any]]:
    """Each part of a container, with the place that it has there."""
    if isinstance(data, MutableMapping):
        yield from data.items()
    elif isinstance(data, list | tuple):
        yield from enumerate(data)
    elif isinstance(data, set | frozenset):
        # parts of a set have no place but their own order, which is the same in a copy
        yield from enumerate(data)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        for field in dataclasses.fields(data):
            yield field.name, getattr(data, field.name)


def shape(data: Any) -> Any:
    """A nest spelled out with the types of all that it holds, to compare it by."""
    if isinstance(data, Leaf):
        return repr(data)
    parts = [(place, shape(part)) for place, part in parts_of(data)]
    if isinstance(data, set | frozenset):
        return type(data), sorted(repr(spelled) for _, spelled in parts)
    if parts or isinstance(data, MutableMapping | list | tuple):
        return type(data), parts
    return type(data), repr(data)


def holds_leaf(data: Any) -> bool:
    return isinstance(data, Leaf) or any(holds_leaf(part) for _, part in parts_of(data))


def ids_of(data: Any) -> set[int]:
    """The identity of every mutable container in a nest."""
    own = {id(data)} if isinstance(data, dict | list | set) else set()
    return own.union(*(ids_of(part) for _, part in parts_of(data)))
