"""A container of every class that a nest may be made of."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar


class Point(NamedTuple):
    x: Any
    y: Any = None


Old = collections.namedtuple("Old", "x y")


class Picky(tuple[Any, ...]):
    """A tuple whose class takes other arguments than its parts, and that has attributes."""

    def __new__(cls, first: Any, *, second: Any) -> Picky:
        self = super().__new__(cls, (first, second))
        self.note = "kept"
        return self

    note: str


class Labels(list[Any]):
    def __init__(self, parts: Any = (), name: str = "") -> None:
        super().__init__(parts)
        self.name = name


class Bag(set[Any]):
    name = "bag"


class Frozen(frozenset[Any]):
    pass


class Sorted(set[Any]):
    """A set whose class takes other arguments than its items."""

    def __init__(self, name: str, *items: Any) -> None:
        super().__init__(items)
        self.name = name


class Sealed(frozenset[Any]):
    """The same, of one that cannot be changed."""

    def __new__(cls, name: str, *items: Any) -> Sealed:
        self = super().__new__(cls, items)
        self.name = name
        return self

    name: str


class Store(collections.abc.MutableMapping[str, Any]):
    """A mapping that keeps its items in an attribute, which a plain copy of it would share."""

    def __init__(self, name: str, **items: Any) -> None:
        self.name = name
        self.items_by_key = items

    def __getitem__(self, key: str) -> Any:
        return self.items_by_key[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_by_key[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_by_key)

    def __len__(self) -> int:
        return len(self.items_by_key)

    def __repr__(self) -> str:
        return f"Store({self.name!r}, {self.items_by_key!r})"


class Registry(dict[str, Any]):
    def __init__(self, name: str, **entries: Any) -> None:
        super().__init__(**entries)
        self.name = name


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Ice:
    x: Any
    y: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedIce:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True)
class HandSlottedIce:
    __slots__ = ("x", "y")
    x: Any
    y: Any


@dataclasses.dataclass
class Checked:
    """One whose __init__ takes other arguments than its fields, and refuses to run again."""

    x: Any
    y: Any = dataclasses.field(init=False, default=None)
    seed: dataclasses.InitVar[int] = 0
    inits = 0

    def __post_init__(self, seed: int) -> None:
        assert seed == 7, "a copy is not made by __init__"
        self.extra = "kept"


@dataclasses.dataclass
class ManyFields:
    f: Any
    e: Any
    d: Any
    c: Any
    b: Any
    a: Any


@dataclasses.dataclass(slots=True)
class ManySlots(ManyFields):
    pass


T = TypeVar("T")


@dataclasses.dataclass
class Of(Generic[T]):
    x: T


CONTAINERS: list[Callable[..., Any]] = [
    lambda leaf: {"a": leaf, "b": 2},
    lambda leaf: collections.OrderedDict(a=leaf, b=2),
    lambda leaf: collections.defaultdict(list, {"a": leaf, "b": 2}),
    lambda leaf: collections.Counter({"a": leaf}),
    lambda leaf: Registry("name", a=leaf),
    lambda leaf: collections.UserDict(a=leaf, b=2),
    lambda leaf: collections.ChainMap({"a": leaf, "b": 2}, {"a": 1}),
    lambda leaf: Store("name", a=leaf, b=2),
    lambda leaf: [leaf, 2],
    lambda leaf: Labels([leaf, 2], "name"),
    lambda leaf: (leaf, 2),
    lambda leaf: Point(leaf, 2),
    lambda leaf: Point(x=2, y=leaf),
    lambda leaf: Old(leaf, 2),
    lambda leaf: Picky(leaf, second=2),
    lambda leaf: {leaf, 2},
    lambda leaf: Bag([leaf, 2]),
    lambda leaf: frozenset([leaf, 2]),
    lambda leaf: Frozen([leaf, 2]),
    lambda leaf: Sorted("name", leaf, 2),
    lambda leaf: Sealed("name", leaf, 2),
    lambda leaf: Plain(leaf, 2),
    lambda leaf: Ice(leaf, 2),
    lambda leaf: Slotted(leaf, 2),
    lambda leaf: SlottedIce(leaf, 2),
    lambda leaf: HandSlottedIce(leaf, 2),
    lambda leaf: Checked(leaf, seed=7),
    lambda leaf: Of(leaf),
    lambda leaf: time.struct_time((leaf, *range(8))),
    lambda leaf: os.terminal_size((leaf, 2)),
]
