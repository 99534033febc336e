"""Random networks, described without naming a package, for hypothesis to draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

KEYS = "abcdef"
MODES = ("train", "eval", "test", "infer")
DS_IDS = ("1", "2", "3")

Make = Callable[["Item"], Any]


@dataclass(frozen=True)
class Item:
    """An op, a postprocessing op or a slicer.

    `reads` and `writes` are a key, a list of keys or None, as a user would give them.
    """

    kind: str
    reads: Any
    writes: Any
    mode: Any
    ds_id: Any


@dataclass(frozen=True)
class Epochs:
    """An EpochScheduler."""

    values: dict[int, Item | None]


@dataclass(frozen=True)
class Turns:
    """A RepeatScheduler."""

    values: list[Item | None]


@dataclass(frozen=True)
class Context:
    """How a network is opened."""

    mode: str
    epoch: int
    ds_id: str
    wanted: set[str] | None


def _names(values: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """What `mode` and `ds_id` can be: nothing, a name, some names, or these with "!"."""
    some = st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)
    named = st.one_of(
        st.sampled_from(values),
        st.sampled_from(values).map("!{}".format),
        some,
        some.map(lambda names: [f"!{name}" for name in names]),
    )
    # otherwise hardly anything would be active at once
    return st.integers(0, 3).flatmap(lambda dice: named if dice == 3 else st.none())


def _some_keys(least: int) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(KEYS),
        st.lists(st.sampled_from(KEYS), min_size=least, max_size=3, unique=True),
    )


_modes, _ds_ids = _names(MODES), _names(DS_IDS)


def _items(kind: str, reads: Any, writes: Any) -> st.SearchStrategy[Item]:
    return st.builds(Item, st.just(kind), reads, writes, _modes, _ds_ids)


_nothing = st.none()
_op = _items("op", _some_keys(0) | _nothing, _some_keys(1) | _nothing)
_delete = _items("delete", _some_keys(1), _nothing)
_cutter = _items("axis", _some_keys(1), _some_keys(1) | _nothing)
_joiner = _items(
    "mean",
    _nothing,
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=len(KEYS), unique=True),
)


def scheduled(items: st.SearchStrategy[Item]) -> st.SearchStrategy[Any]:
    """Let items come as they are, not at all, or in a scheduler."""
    maybe = items | st.none()
    return st.one_of(
        items,
        items,
        items,
        st.none(),
        st.dictionaries(st.integers(1, 5), maybe, min_size=1, max_size=3).map(Epochs),
        st.lists(maybe, min_size=2, max_size=3).map(Turns),
    )


_several_ops = st.lists(scheduled(st.one_of(_op, _op, _op, _op, _delete)), min_size=2, max_size=7)
ops = st.one_of(_several_ops, _several_ops, st.lists(scheduled(_op), max_size=1))
pops = st.lists(scheduled(st.one_of(_op, _op, _delete)), max_size=3)
slicers = st.one_of(
    st.tuples(scheduled(_cutter), scheduled(_joiner)).map(list),
    st.lists(scheduled(st.one_of(_cutter, _cutter, _joiner)), min_size=1, max_size=3),
)
contexts = st.builds(
    Context,
    st.sampled_from(MODES),
    st.integers(1, 6),
    st.sampled_from(("", *DS_IDS)),
    st.none() | st.sets(st.sampled_from(KEYS), max_size=4),
)


def built(lib: Any, entries: list[Any], make: Make) -> list[Any]:
    """Make a network's list of a drawn one."""

    def one(item: Item | None) -> Any:
        return None if item is None else make(item)

    things: list[Any] = []
    for entry in entries:
        if isinstance(entry, Epochs):
            values = {epoch: one(item) for epoch, item in entry.values.items()}
            things.append(lib.schedule.EpochScheduler(values))
        elif isinstance(entry, Turns):
            things.append(lib.schedule.RepeatScheduler([one(item) for item in entry.values]))
        else:
            things.append(one(entry))
    return things
