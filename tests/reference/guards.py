"""A snapshot as a dump: the description of every value, by the path that leads to it."""

from __future__ import annotations

import contextvars
import ctypes
import dis
import io
import logging
import os
import re
import struct
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np

ABSENT = object()
LEAVES = (
    *(np.generic, np.ndarray, type, types.ModuleType, types.CodeType, io.IOBase),
    *(logging.Logger, threading.Thread, type(lru_cache(len))),
)
WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
LIBRARIES = (os.path.dirname(os.__file__), "site-packages")
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)

Parts = Iterator[tuple[str, Any]]


class Snapshot:
    def __init__(
        self,
        roots: Iterable[tuple[str, Any]],
        skip: Iterable[tuple[Any, str]] = (),
        *,
        shallow: bool = False,
    ) -> None:
        self.roots = list(roots)
        self.skip = {(id(owner), name) for owner, name in skip}
        functions = (types.FunctionType, types.ModuleType)
        self.skip |= {(id(vars(one)), name) for one, name in skip if isinstance(one, functions)}
        self.shallow = shallow
        # Descriptions name objects by their ids, so none of the objects may be freed.
        self.alive: list[Any] = [skip]
        self.before = self.dump(self.roots)
        self.before_by_root = [self.dump([root]) for root in self.roots]

    def is_unchanged(self) -> bool:
        return self.first_change() is None

    def first_change(self) -> str | None:
        now = self.dump(self.roots)
        paths = [*self.before, *now]
        return next((path for path in paths if self.before.get(path) != now.get(path)), None)

    def changed_roots(self) -> list[int]:
        now_by_root = [self.dump([root]) for root in self.roots]
        return [index for index, now in enumerate(now_by_root) if now != self.before_by_root[index]]

    def dump(self, roots: list[tuple[str, Any]]) -> dict[str, Any]:
        self.names: set[str] = set()
        count = -1
        # The names that decide which references are followed are known after a dump.
        while len(self.names) > count:
            count = len(self.names)
            found = self.dump_once(roots)
        return found

    def dump_once(self, roots: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        entered: set[int] = set()
        self.referents: list[Any] = []
        waiting = deque(roots)
        while waiting:
            path, value = waiting.popleft()
            if not any(value is referent for referent in self.referents):
                self.alive.append(value)
            found[path] = describe(value)
            if id(value) not in entered:
                entered.add(id(value))
                if isinstance(value, dict):
                    found[f"{path}: keys"] = [describe(key) for key in self.keys_of(value)]
                is_root = path in dict(roots)
                waiting.extend(
                    (path + step, part) for step, part in self.parts_of(value, is_root, path)
                )
        return found

    def keys_of(self, value: Any) -> list[Any]:
        return [key for key in value if not self.is_skipped(value, key)]

    def is_skipped(self, owner: Any, name: Any) -> bool:
        return isinstance(name, str) and (id(owner), name) in self.skip

    def referent_by(self, reference: Any, path: str) -> Parts:
        """Yield whether the referent of a weak reference is alive, and itself if it is used."""
        referent = weakref.ref.__call__(reference)
        yield " is alive", referent is not None
        if self.is_used(path):
            self.referents.append(referent)
            yield "()", referent

    def is_used(self, path: str) -> bool:
        """Return whether code names a part of a path."""
        parts = {*re.findall(r"\w+", path)}
        return bool(parts & self.names) or not parts.isdisjoint(["closure", "global"])

    def parts_of(self, value: Any, is_root: bool, path: str = "") -> Parts:
        """Go through the values that an object holds, each with the rest of its path."""
        if isinstance(value, type) and value.__module__ not in sys.stdlib_module_names:
            if not self.shallow:
                yield from self.attributes_of_class(value)
            return
        if isinstance(value, LEAVES):
            return
        if isinstance(value, WEAK):
            if self.is_used(path):
                yield ".data", vars(value)["data"]
            return
        if isinstance(value, weakref.ref):
            yield from self.referent_by(value, path)
        if isinstance(value, contextvars.ContextVar):
            yield ".get()", value.get(ABSENT)
            with suppress(LookupError):
                yield " or default", value.get()
        if isinstance(value, ctypes.c_int.__mro__[-2]):
            yield ".value", bytes(memoryview(value))
        if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
            yield ".__self__", value.__self__
            return
        yield from self.items_of(value)
        if self.shallow and not is_root:
            return
        if isinstance(value, deque):
            yield from enumerated(value)
        if isinstance(value, types.FunctionType):
            yield from self.parts_of_function(value)
            return
        names = {
            types.MethodType: ["__func__", "__self__"],
            partial: ["func", "args", "keywords"],
            staticmethod: ["__func__"],
            classmethod: ["__func__"],
            property: ["fget", "fset", "fdel"],
            defaultdict: ["default_factory"],
        }
        for cls, members in names.items():
            if isinstance(value, cls):
                yield from ((f".{name}", getattr(value, name)) for name in members)
        yield ".__class__", type(value)
        yield from self.attributes_of(value)
        yield from self.attributes_of_class(type(value))

    def items_of(self, value: Any) -> Parts:
        if isinstance(value, dict):
            for key in self.keys_of(value):
                yield f"[{label(key)}]", value[key]
                yield f"[{label(key)}] key", key
        if isinstance(value, list | tuple):
            yield from enumerated(value)
        if isinstance(value, set | frozenset):
            members = sorted(value, key=lambda member: str(describe(member)))
            yield from ((f" element {label(member)}", member) for member in members)

    def attributes_of(self, value: Any) -> Parts:
        attributes = getattr(value, "__dict__", None)
        if attributes is not None and not isinstance(value, staticmethod | classmethod):
            yield ".__dict__", id(attributes)
            for name, attribute in sorted(attributes.items(), key=str):
                if not self.is_skipped(value, name):
                    yield f".{name}", attribute
        for base in type(value).__mro__:
            for name in vars(base).get("__slots__", ()):
                if name.startswith("__") and not name.endswith("__"):
                    name = f"_{base.__name__}{name}"
                if name not in ("__dict__", "__weakref__") and not self.is_skipped(value, name):
                    yield f".{name} in a slot", getattr(value, name, ABSENT)

    def attributes_of_class(self, cls: type) -> Parts:
        for base in cls.__mro__:
            if base.__module__ in ("builtins", "collections", "functools"):
                continue
            yield f" class {base.__name__}.__bases__", base.__mro__
            for name, value in sorted(vars(base).items()):
                is_dunder = name.startswith("__") and name.endswith("__")
                if is_dunder and not isinstance(value, FUNCTIONS):
                    continue
                if not self.is_skipped(base, name):
                    yield f" class {base.__name__}.{name}", value

    def parts_of_function(self, function: types.FunctionType) -> Parts:
        code = function.__code__
        if any(library in code.co_filename for library in LIBRARIES):
            yield "", getattr(function, "__wrapped__", None)
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
            yield f".{name}", getattr(function, name)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield f" closure variable {name!r}", content_of(cell)
        if self.shallow:
            return
        self.names |= names_in(code, "LOAD_ATTR", "LOAD_METHOD")
        for name in sorted(names_in(code, "GLOBAL", "LOAD_NAME")):
            value = function.__globals__.get(name, ABSENT)
            if not self.is_skipped(function.__globals__, name):
                yield f" global {name!r}", value
            if isinstance(value, types.ModuleType):
                is_library = value.__name__ in sys.stdlib_module_names
                for attribute in sorted(names_in(code, "ATTR", "METHOD") & vars(value).keys()):
                    part = vars(value)[attribute]
                    if not self.is_skipped(value, attribute):
                        yield f" global {name!r}.{attribute}", id(part) if is_library else part


def enumerated(values: Iterable[Any]) -> Parts:
    yield from ((f"[{index}]", value) for index, value in enumerate(values))


def names_in(code: types.CodeType, *operations: str) -> set[str]:
    """Return the names that code uses in some operations."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if any(operation in instruction.opname for operation in operations)
    }.union(*(names_in(each, *operations) for each in inner))


def content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def label(value: Any) -> str:
    """Return the repr of a number or a string, and nothing that could change of anything else."""
    return repr(describe(value)[-1])


def describe(value: Any) -> Any:
    """Describe a value such that two descriptions are equal if the values are."""
    kind = type(value).__name__
    if type(value) in (int, bool, str, bytes, type(None)):
        return kind, value
    if type(value) in (float, complex):
        return kind, struct.pack("dd", complex(value).real, complex(value).imag)
    if isinstance(value, np.generic):
        return kind, str(value.dtype), value.tobytes()
    if isinstance(value, slice | range):
        return kind, describe((value.start, value.stop, value.step))
    if isinstance(value, types.MethodType):
        return kind, id(value.__func__), id(value.__self__)
    if isinstance(value, weakref.ref) and value() is not None:
        return kind, id(weakref.ref.__call__(value))
    if isinstance(value, frozenset):
        return kind, sorted(str(describe(member)) for member in value)
    if isinstance(value, tuple):
        return kind, id(type(value)), [describe(item) for item in value]
    return "object", id(value)
