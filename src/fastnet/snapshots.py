"""What an object was like at one time, to tell later whether a program has written to it.

A graph that was made with an object has what the object held then for good. Two snapshots that are
alike say that it still holds that.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

__all__ = ["alike", "snapshot_of"]

# an object may lead to a whole program: what lies further off is compared by identity, or equality
_DEPTH = 16
_MOST_VALUES = 1000

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...))
_NEVER = (type, enum.Enum, types.ModuleType, types.BuiltinFunctionType)
# nobody gives these attributes of their own
_BARE = (dict, list, tuple, OrderedDict, Counter, UserDict, ChainMap)


def snapshot_of(value: Any) -> Any:
    """Take down the attributes of a value.

    Args:
        value: Anything but a tensor. What a container holds, or a dataclass has as fields, is not
            part of it.

    Returns:
        Something to be compared with `alike`; None for a value that has no attributes.
    """
    cls = type(value)
    if cls in _ATOMS or cls in _BARE or isinstance(value, _NEVER):
        return None
    if isinstance(value, (set, frozenset)):
        members = {one: snapshot_of(one) for one in value}
        found = {one: state for one, state in members.items() if state is not None}
        return found or None
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return _Walk().function(value)
    fields = getattr(cls, "__dataclass_fields__", None)
    if fields is not None and _own(value).keys() == fields.keys():
        return ()
    return _Walk().attributes(value) if _has_attributes(cls) else None


def alike(one: Any, other: Any) -> bool:
    """Return whether two snapshots are of values that hold the same.

    Args:
        one: A snapshot.
        other: Another one.

    Returns:
        Whether it is so; what cannot be compared differs.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(alike, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    try:
        equal = one == other
        # arrays compare item by item, which is no answer
        return not getattr(equal, "shape", None) and bool(equal)
    except Exception:
        return False


class _Walk:
    """One look at a value and at what it leads to."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES
        self._path: list[int] = []

    def attributes(self, value: Any) -> Any:
        return self._around(value, lambda: tuple(self._attributes(value)))

    def function(self, value: Any) -> Any:
        return self._around(value, lambda: self._function(value))

    def _around(self, value: Any, look: Callable[[], Any]) -> Any:
        """Look into a value, unless this is what led here, or was enough."""
        self._left -= 1
        if id(value) in self._path or len(self._path) >= _DEPTH or self._left < 0:
            return ()
        self._path.append(id(value))
        try:
            return look()
        finally:
            self._path.pop()

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        found = dict(_named(value))
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                found.pop(field.name, None)
        if isinstance(value, MutableMapping) and not isinstance(value, dict):
            # among them is what it keeps its items in
            found = {name: part for name, part in found.items() if type(part) in _ATOMS}
        for name in sorted(found):
            yield name, self._look(found[name])

    def _function(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            return self._look(value.__func__), self._look(value.__self__)
        if isinstance(value, functools.partial):
            return tuple(map(self._look, (value.func, value.args, value.keywords, vars(value))))
        cells = [_content(cell) for cell in value.__closure__ or ()]
        parts = value.__defaults__, value.__kwdefaults__, cells, vars(value)
        return value.__code__, *map(self._look, parts)

    def _look(self, value: Any) -> Any:
        cls = type(value)
        if cls in _ATOMS or isinstance(value, _NEVER):
            return value
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            # a bound method is another one each time that it is asked for
            method = isinstance(value, types.MethodType)
            return cls, None if method else value, self.function(value)
        return cls, self._around(value, lambda: self._core(value)), self.attributes(value)

    def _core(self, value: Any) -> Any:
        """Take down what a value is, besides its attributes."""
        if isinstance(value, dict):
            return tuple([(self._look(key), self._look(part)) for key, part in value.items()])
        if isinstance(value, (list, tuple, deque)):
            return tuple(map(self._look, value))
        if isinstance(value, (set, frozenset)):
            return {one: self._look(one) for one in value}
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return tuple([self._look(getattr(value, name, None)) for name in names])
        if hasattr(value, "tobytes") and hasattr(value, "dtype"):
            if value.dtype.hasobject:
                return value.shape, self._look(value.tolist())
            return value.shape, str(value.dtype), value.tobytes()
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        return value


def _has_attributes(cls: type) -> bool:
    return bool(cls.__dictoffset__) or any(vars(base).get("__slots__") for base in cls.__mro__)


def _own(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """List the attributes that are a value's own."""
    yield from _own(value).items()
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            full = f"_{base.__name__.lstrip('_')}{name}" if hidden else name
            if full not in ("__dict__", "__weakref__") and hasattr(value, full):
                yield full, getattr(value, full)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # of a name that is not bound yet
