"""What an op or a slicer said of itself when it was read, and whether it still says so."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastnet._resolve import KeyTable, OpSpec, SlicerSpec
from fastnet._watch import Noticing
from fastnet.backend.facts import is_built
from fastnet.op.op import Op, is_delete
from fastnet.util.noticed import NoticedList, NoticedSet

__all__ = ["CLASS_ATTRIBUTES", "Reading", "settle_all"]

CLASS_ATTRIBUTES = (
    "apply",
    "bind",
    "deletes_inputs",
    "ds_id",
    "forward",
    "forward_batch",
    "in_list",
    "inputs",
    "make_run",
    "make_take",
    "mode",
    "out_list",
    "outputs",
)
"""What of a class counts in an opening, whether it is there or not."""

# what items hold, and the types that leave a mark when they change, or cannot change
_LISTS = (NoticedList, tuple)
_SETS = (NoticedSet, frozenset, tuple)
_FLAGS = (bool,)
_HELD: dict[str, tuple[type, ...]] = {
    "inputs": _LISTS,
    "outputs": _LISTS,
    "slice_inputs": _LISTS,
    "unslice_inputs": _LISTS,
    "ops": _LISTS,
    "mode": _SETS,
    "ds_id": _SETS,
    "in_list": _FLAGS,
    "out_list": _FLAGS,
}
# of these only another one is a change
_WHOLE = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    np.generic,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)


class Reading:
    """An item of a network, as it was read.

    Args:
        item: An op, a postprocessing op or a slicer.
        table: The table of the network's keys.
        methods: What the classes of other items have, by class, for items of the same class to
            share: thousands of ops do not keep a tuple each.

    Attributes:
        item: The item.
        spec: What the kernel knows of it.
        inside: The readings of the ops that it runs.
        is_watched: Whether all that changes the item itself, ops inside aside, leaves a mark.
    """

    __slots__ = ("_methods", "_settings", "inside", "is_watched", "item", "spec")

    def __init__(
        self, item: Any, table: KeyTable, methods: dict[type, tuple[Any, ...]] | None = None
    ) -> None:
        self.item = item
        # their keys are no keys of the network
        self.inside = tuple([Reading(op, KeyTable(), methods) for op in _inner_ops(item)])
        self.spec: OpSpec | SlicerSpec
        if hasattr(item, "slice_inputs"):
            self.spec = SlicerSpec(item, table)
        else:
            self.spec = OpSpec(item, table, is_delete(item))
        self._methods = _methods(item)
        if methods is not None:
            known = methods.setdefault(type(item), self._methods)
            self._methods = known if _are_same(known, self._methods) else self._methods
        self._settings = tuple([_remember(value) for value in _settings(item)])
        self.is_watched = self._is_watched()

    def is_same(self) -> bool:
        """Return whether the item, and each op inside, is what it was.

        Returns:
            True if it is.
        """
        inner = _inner_ops(self.item)
        return (
            self.spec.is_as_read()
            and (not isinstance(self.spec, OpSpec) or is_delete(self.item) == self.spec.deletes)
            and _are_same(_methods(self.item), self._methods)
            and self._has_same_settings()
            # a plain list or set may have taken the place of one that leaves marks
            and (not self.is_watched or self._is_watched())
            and len(inner) == len(self.inside)
            and all(
                op is reading.item and reading.is_same()
                for op, reading in zip(inner, self.inside, strict=True)
            )
        )

    def _is_watched(self) -> bool:
        item = self.item
        if not isinstance(item, Noticing) or type(item).__setattr__ is not Noticing.__setattr__:
            return False
        own = vars(item)
        # a property, which is not there, may say something else each time
        return all(
            type(own[name]) in kinds if name in own else not hasattr(type(item), name)
            for name, kinds in _HELD.items()
        ) and all(map(_is_whole, _settings(item)))

    def settle(self, build: Callable[[Any], None]) -> None:
        """Let the item, and each op inside that changed, work out anew what follows from itself.

        Args:
            build: Gets an op ready for the network's framework.

        Raises:
            Exception: Whatever is wrong with what was written to it.
        """
        known = {id(reading.item): reading for reading in self.inside}
        for op in _inner_ops(self.item):
            reading = known.get(id(op))
            if reading is None:
                settle_all(op)
                build(op)
            elif not reading.is_same():
                reading.settle(build)
        if isinstance(self.item, Noticing):
            self.item.settle(self._changed_settings())  # type: ignore[attr-defined]
        if isinstance(self.item, Op) and self.item.settled_by:
            build(self.item)

    def each(self) -> Iterator[Reading]:
        """Go through the reading and those of the ops inside.

        Yields:
            The readings.
        """
        yield self
        for reading in self.inside:
            yield from reading.each()

    def _has_same_settings(self) -> bool:
        now = _settings(self.item)
        return len(now) == len(self._settings) and all(map(_is_remembered, self._settings, now))

    def _changed_settings(self) -> list[str]:
        return [
            name
            for name, now, then in zip(
                getattr(self.item, "settled_by", ()),
                _settings(self.item),
                self._settings,
                strict=True,
            )
            if not _is_remembered(then, now)
        ]


def settle_all(item: Any) -> None:
    """Let an op that a network gets, and the ops inside, settle what was written to them before.

    Args:
        item: The op.

    Raises:
        Exception: Whatever is wrong with what was written.
    """
    inner = _inner_ops(item)
    for op in inner:
        settle_all(op)
    if isinstance(item, Op) and (item.settled_by or inner):
        item.settle()


def _inner_ops(item: Any) -> list[Any]:
    return item.inner_ops() if isinstance(item, Op) else []


def _methods(item: Any) -> tuple[Any, ...]:
    # a bound forward differs from look to look, and is compared as one
    cls = type(item)
    return tuple([getattr(cls, name, None) for name in CLASS_ATTRIBUTES])


def _are_same(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    return all(map(operator.is_, now, then))


def _settings(item: Any) -> list[Any]:
    if not isinstance(item, Op):
        return []
    return [getattr(item, name, None) for name in item.settled_by]


def _is_whole(value: Any) -> bool:
    if isinstance(value, (tuple, NoticedList)):
        return all(map(_is_whole, value))
    return isinstance(value, _WHOLE) or is_built(value)


def _remember(value: Any) -> Any:
    """Copy what can be changed in place."""
    if isinstance(value, (list, tuple)):
        return [_remember(one) for one in value]
    if isinstance(value, dict):
        return {key: _remember(one) for key, one in value.items()}
    if isinstance(value, set):
        return set(value)
    if isinstance(value, _WHOLE) or is_built(value):
        return value
    return _as_array(value)


def _as_array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().float()
    return np.array(value) if hasattr(value, "__array__") else value


def _is_remembered(memory: Any, value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return (
            isinstance(memory, list)
            and len(memory) == len(value)
            and all(map(_is_remembered, memory, value))
        )
    if isinstance(value, dict):
        return (
            isinstance(memory, dict)
            and list(memory) == list(value)
            and all(_is_remembered(memory[key], value[key]) for key in value)
        )
    if isinstance(value, (set, *_WHOLE)) and not isinstance(value, np.generic):
        return memory is value or (type(memory) is type(value) and bool(memory == value))
    if is_built(value):
        return memory is value
    now = _as_array(value)
    if isinstance(now, (np.ndarray, np.generic)):
        return isinstance(memory, type(now)) and np.array_equal(memory, now)
    return memory is now
