"""Detects changes in the Python data reachable from some objects.

A snapshot follows attributes of objects and of their classes, dicts, lists, tuples, sets, deques,
partials, bound methods, and the functions of the user's own code with their defaults, closures and
the globals that they name. It reads context variables, thread-locals and ctypes objects of up to
64 KB, such as the values of multiprocessing, as they are in the current thread. Weak references are
compared by whether their referents are alive, and followed if the code that was reached names them.
Slices, ranges and numpy's scalars are compared by value, and everything else by identity: tensors
and arrays, modules, types, functions and classes of libraries, generators, files, locks, loggers
and threads. No code of the objects is called, not even ``__eq__``; only thread-locals of a class
with an ``__init__`` run it in each thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dis
import functools
import io
import os
import struct
import sys
import sysconfig
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastnet._guards import ABSENT, BaseSnapshot, Kind, is_mutable, referent_of

__all__ = ["Snapshot", "token_of"]

# Read attributes of classes and modules directly, whatever a metaclass defines.
_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__
_class_name = type.__dict__["__name__"].__get__
_dict_offset = type.__dict__["__dictoffset__"].__get__
_module_dict = vars(types.ModuleType)["__dict__"].__get__
_sizeof: Callable[[Any], int] = ctypes.sizeof
_read_local = threading.local.__getattribute__

# The base class of all ctypes objects, among them the values and arrays of multiprocessing.
_CDATA: type = ctypes.c_int.__mro__[-2]
# Larger ones hold data, and would be copied in each comparison.
_MAX_CDATA = 2**16
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_CONTAINERS = (
    (dict, Kind.DICT),
    (OrderedDict, Kind.SEQUENCE),
    (list, Kind.LIST),
    (set, Kind.SET),
    (deque, Kind.SEQUENCE),
    (tuple, Kind.FIXED),
    (frozenset, Kind.FIXED),
    *((cls, Kind.WEAK) for cls in (weakref.ref, *_PROXIES)),
    *((cls, Kind.STATE) for cls in (contextvars.ContextVar, threading.local, _CDATA)),
)
# These hold weak references in `data`.
_WEAK_CONTAINERS = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
# C classes that store objects in members, as a partial stores its function.
_WITH_MEMBERS = (functools.partial, property, staticmethod, classmethod, defaultdict)
# Attributes of these are not compared: Python adds some of them when they are first read.
_WITHOUT_ATTRIBUTES = (OrderedDict, staticmethod, classmethod)
# Instances of these are compared by identity.
_LEAVES = (
    BaseSnapshot,
    type,
    types.CodeType,
    types.ModuleType,
    io.IOBase,
    type(functools.lru_cache(len)),
)
# The same, for classes of modules not imported here: before the import, no instances exist.
_OTHER_LEAVES = {
    "logging": "Logger",
    "threading": "Thread",
    "torch.library": "CustomOpDef",
    "tensorflow": "Graph",
    "tensorflow._api.v2.distribute": "Strategy",
    "fastnet.network.base": "BaseNetwork",
}
# Functions and methods that are written in C.
_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType)
# Instances of exactly these classes are compared by their bits.
_ATOMS = (type(None), bool, int, float, complex, str, bytes)

# The fixed values that begin a node, by the names that paths show. That of a CLASS is its MRO,
# shown as `__bases__`.
_HEADERS = {
    Kind.OBJECT: ("__class__", "__dict__"),
    Kind.CLASS: ("__bases__",),
    Kind.FUNCTION: ("__code__", "__closure__", "__defaults__", "__kwdefaults__", "__dict__"),
}
# The number of values per item, for kinds that store a name or key before each value, and sets.
_STEPS = {Kind.OBJECT: 2, Kind.CLASS: 2, Kind.DICT: 2, Kind.SLOTS: 2, Kind.SET: 1}
_UNORDERED = (Kind.OBJECT, Kind.CLASS, Kind.SET)
_MAX_KEY_LENGTH = 60
_MAX_STEPS = 40
# Tuples and frozensets nested deeper than this are compared by identity. Each level may double the
# time.
_MAX_DEPTH = 12

_READ_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READ_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})

_LIBRARY_FOLDERS = tuple(
    os.path.normcase(os.path.join(folder, ""))
    for folder in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.__file__),
        os.path.dirname(__file__),
    }
)


class Snapshot(BaseSnapshot):
    """A snapshot of the data reachable from some objects.

    Values such as numbers and strings are equal only if they have the same type and the same bits:
    a NaN equals the same NaN, but 0.0 differs from -0.0, and 1 from True. Tuples, frozensets and
    bound methods are equal if their parts are. All other objects are compared by identity, and then
    by what they hold. The order of dict keys matters, and the order of attributes does not.

    Args:
        roots: The objects, each with a name that paths begin with.
        skip: Attributes, dict keys or globals that may change: the object, dict or module, and the
            name.
        shallow: Whether to follow only the attributes of the roots and of their classes, and the
            dicts, lists, tuples and sets in them.
        max_entries: The maximum number of values to compare. The rest is ignored.

    Attributes:
        truncated: The path of the object at which `max_entries` was reached, or None.

    >>> settings = {"factor": 2.0, "clip": None}
    >>> snapshot = Snapshot([("settings", settings)])
    >>> snapshot.is_unchanged()
    True
    >>> settings["factor"] = 3.0
    >>> snapshot.first_change()
    "settings['factor']"
    """

    __slots__ = ("_names", "truncated")

    def __init__(
        self,
        roots: Iterable[tuple[str, Any]],
        skip: Iterable[tuple[Any, str]] = (),
        *,
        shallow: bool = False,
        max_entries: int = 200_000,
    ) -> None:
        roots, skip = list(roots), list(skip)
        self._names = [name for name, _ in roots]
        super().__init__(
            _RULES, [root for _, root in roots], _names_to_skip(skip), shallow, max_entries
        )
        self.truncated = self._path(self._stopped_at) if self._stopped_at >= 0 else None

    def values(self) -> Iterator[Any]:
        """Yield the objects that the snapshot follows, each with its values, maybe repeatedly."""
        for index in range(self.count):
            kind, owner, _, _, values = self.node(index)
            if kind != Kind.LINK:
                yield from (owner, *values)

    def is_change_of_number(self) -> bool:
        """Return whether the first difference is in a value that was a number."""
        _, values, position = self._first_difference()
        return position >= 0 and type(values[position]) in (int, float)

    def first_change(self) -> str | None:
        """Return the path of the first difference, or None if nothing has changed.

        Returns:
            A path such as "op 3 (Scale).config.factor".
        """
        index, values, position = self._first_difference()
        if index < 0:
            return None
        kind, owner, _, _, _ = self.node(index)
        return self._path(index) + _step(kind, owner, values, position)

    def _first_difference(self) -> tuple[int, Sequence[Any], int]:
        """Return the index of the first node that differs, its values, and the position in these.

        The index is -1 if nothing has changed, and the position is -1 if the change has no value.
        """
        index = self.next_change(0)
        if index < 0:
            return index, (), -1
        # Another thread may have undone the change.
        values, position = self._difference_in(index) or ((), -1)
        return index, values, position

    def changed_roots(self) -> list[int]:
        """Return the indices of the roots from which a difference is reachable.

        Returns:
            The indices in ascending order; empty if nothing has changed.
        """
        reached = []
        index = self.next_change(0)
        while index >= 0:
            reached.append(index)
            index = self.next_change(index + 1)
        parents: dict[int, list[int]] = {}
        for index in range(self.count if reached else 0):
            kind, _, parent, _, target = self.node(index)
            parents.setdefault(target if kind == Kind.LINK else index, []).append(parent)
        seen = set(reached)
        while reached:
            unseen = [parent for parent in parents[reached.pop()] if parent not in seen]
            seen.update(unseen)
            reached += [parent for parent in unseen if parent >= 0]
        # The parent of a root's node is -1 minus the root's index.
        return sorted(-1 - index for index in seen if index < 0)

    def find(self, matches: Callable[[type], bool]) -> list[tuple[str, Any, bool]]:
        """Return the objects of some classes, with their paths and whether code names them.

        Args:
            matches: Returns whether the objects of a class are to be found.

        Returns:
            A path, an object, and whether code that was reached uses the name that leads to it.
        """
        places: list[tuple[int, int]] = []
        functions: list[types.FunctionType] = []
        known: dict[type, bool] = {}
        for index in range(self.count):
            kind, owner, _, _, values = self.node(index)
            if kind == Kind.LINK:
                continue
            if kind == Kind.FUNCTION:
                functions.append(owner)
            for position, value in enumerate(values):
                cls = type(value)
                if cls not in known:
                    known[cls] = matches(cls)
                if known[cls]:
                    places.append((index, position))
        names = _attributes_read_by(functions)
        objects: list[tuple[str, Any, bool]] = []
        for index, position in places:
            kind, owner, _, _, values = self.node(index)
            path = self._path(index) + _step(kind, owner, values, position)
            objects.append(
                (path, values[position], _is_named_by_code(self, index, position, names))
            )
        return objects

    def _path(self, index: int) -> str:
        """Return the path that led to a node."""
        steps: list[str] = []
        child_kind = None
        while index >= 0:
            kind, owner, parent, position, values = self.node(index)
            if kind == Kind.GLOBAL:
                is_of_module = self.node(parent)[0] == Kind.GLOBAL
                steps.append(f".{values[0]}" if is_of_module else f" global {values[0]!r}")
            elif position >= 0 and parent >= 0:
                parent_kind, owner, _, _, values = self.node(parent)
                steps.append(_step(parent_kind, owner, values, position))
            elif kind == Kind.CLASS and child_kind != Kind.CLASS:
                # A base class is reached from its subclass, which the path omits.
                steps.append(f" class {_class_name(owner)}")
            child_kind, index = kind, parent
        if len(steps) > _MAX_STEPS:
            steps[:-_MAX_STEPS] = ["..."]
        # The parent of a root's node is -1 minus the root's index.
        return self._names[-1 - index] + "".join(reversed(steps))


def _step(kind: Kind, owner: Any, values: Sequence[Any], position: int) -> str:
    """Return the part of a path that leads from a node to one of its values."""
    cls = type(owner)
    header = _HEADERS.get(kind, ())
    if position < 0 or kind == Kind.GLOBAL:
        return ""
    if position < len(header):
        return f".{header[position]}"
    if kind == Kind.FUNCTION:
        return f" closure variable {values[0].co_freevars[position - len(header)]!r}"
    if kind == Kind.WEAK:
        return "" if _is_weak_container(cls) else "()"
    # The position of the name or key that precedes the value.
    key_position = position - (position - len(header)) % _STEPS.get(kind, 1)
    key = values[key_position]
    if kind == Kind.SLOTS:
        return f".{key.__name__}"
    if kind == Kind.STATE:
        if cls is contextvars.ContextVar:
            return ".get()"
        if issubclass(cls, threading.local):
            return f".{values[position - position % 2]}"
        return ".value"
    if kind in (Kind.OBJECT, Kind.CLASS):
        return f".{key}" if type(key) is str else f".__dict__[{_format_key(key)}]"
    if _is_one_of(cls, _BUILTINS):
        return ".__self__"
    if cls is types.FunctionType:
        return ".__wrapped__"
    if cls is types.MethodType:
        return (".__func__", ".__self__")[position]
    if issubclass(cls, (set, frozenset)):
        return f" element {_format_key(key)}"
    return f"[{_format_key(key) if issubclass(cls, dict) else position}]"


def _format_key(key: Any) -> str:
    """Return the repr of a key, or its class where the repr could call code of the key's class."""
    text = repr(key) if _is_one_of(type(key), _ATOMS) else f"<{_class_name(type(key))}>"
    return text if len(text) <= _MAX_KEY_LENGTH else f"{text[:_MAX_KEY_LENGTH]}..."


# --- the rules ------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """The kinds of nodes and the slots that instances of a class have."""

    # The walk caches layouts by the address of the class, so they keep the class alive.
    cls: type
    kinds: tuple[Kind, ...]
    # The kinds that a shallow snapshot follows in the attributes of its roots.
    containers: tuple[Kind, ...]
    # The descriptors of slots and members.
    slots: tuple[types.MemberDescriptorType, ...]


def _layout_of(cls: type) -> _Layout:
    if cls is types.MethodType:
        return _Layout(cls, (Kind.FIXED,), (), ())
    if _is_weak_container(cls):
        return _Layout(cls, (Kind.WEAK,), (), ())
    if _is_leaf(cls):
        return _Layout(cls, (), (), ())
    if issubclass(cls, _CDATA) and _sizeof(cls) > _MAX_CDATA:
        return _Layout(cls, (), (), ())
    containers = tuple(kind for base, kind in _CONTAINERS if issubclass(cls, base))
    slots = tuple(
        descriptor
        for base in _mro(cls)
        if "__slots__" in _class_dict(base) or _is_one_of(base, _WITH_MEMBERS)
        for descriptor in _class_dict(base).values()
        # A class may also have a descriptor of another class among its attributes.
        if type(descriptor) is types.MemberDescriptorType and descriptor.__objclass__ is base
    )
    has_attributes = _dict_offset(cls) != 0 and not _is_one_of(cls, _WITHOUT_ATTRIBUTES)
    kinds = [Kind.OBJECT] if has_attributes or is_mutable(cls) else []
    kinds += [*containers, *([Kind.SLOTS] if slots else [])]
    return _Layout(cls, tuple(kinds), containers, slots)


def _is_one_of(cls: type, classes: Iterable[Any]) -> bool:
    """Return whether a class is one of several, without calling `__eq__` of its metaclass."""
    return any(cls is candidate for candidate in classes)


def _is_weak_container(cls: type) -> bool:
    """Return whether instances of a class are sets or dicts of weak references."""
    return any(_is_one_of(base, _WEAK_CONTAINERS) for base in _mro(cls))


def _is_leaf(cls: type) -> bool:
    """Return whether instances of a class are compared by identity only."""
    other_leaves = [
        getattr(sys.modules.get(module), name, None) for module, name in _OTHER_LEAVES.items()
    ]
    if any(_is_one_of(base, (*_LEAVES, *other_leaves)) for base in _mro(cls)):
        return True
    # Tensors, arrays and their scalars have these in every framework.
    libraries = [_class_dict(base) for base in _mro(cls) if not _is_user_class(base)]
    return all(any(name in names for names in libraries) for name in ("shape", "dtype"))


def _is_user_class(cls: type) -> bool:
    """Return whether a class is defined in the user's own code."""
    if not is_mutable(cls):
        return False
    name = _class_dict(cls).get("__module__")
    # Mutable classes in "builtins" are those that `exec` creates in an empty namespace.
    if type(name) is not str or name == "builtins":
        return True
    module = sys.modules.get(name)
    return not _is_module(module) or _is_user_module(_module_dict(module))


def _is_module(value: Any) -> bool:
    return issubclass(type(value), types.ModuleType)


def _is_user_module(namespace: Mapping[str, Any]) -> bool:
    """Return whether a module belongs to the user's own code."""
    file, name = namespace.get("__file__"), namespace.get("__name__")
    # A profiler or a debugger may leave its own `__file__` in the `__main__` that it runs.
    if type(name) is not str or name == "__main__":
        return True
    if type(file) is str:
        return is_user_file(file)
    # Submodules that are written in C, or created when their package is imported, have no file.
    package = name.partition(".")[0]
    outer = sys.modules.get(package)
    if package != name and _is_module(outer):
        return _is_user_module(_module_dict(outer))
    return package not in sys.stdlib_module_names


@functools.lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Return whether a file belongs to neither Python, an installed package nor fastnet."""
    path = os.path.normcase(path)
    if path.startswith("<frozen "):
        return False
    installed = {"site-packages", "dist-packages"}.intersection(path.split(os.sep))
    return not installed and not path.startswith(_LIBRARY_FOLDERS)


def _kinds_of_function(function: types.FunctionType) -> tuple[Kind, ...]:
    """Return the kinds of nodes of a function; of library code, only `__wrapped__` is followed."""
    if is_user_file(function.__code__.co_filename):
        return (Kind.FUNCTION,)
    if hasattr(function, "registry"):  # It was made by `functools.singledispatch`.
        return (Kind.FUNCTION,)
    return (Kind.FIXED,) if "__wrapped__" in function.__dict__ else ()


def _kinds_of_builtin(function: Any) -> tuple[Kind, ...]:
    """Return the kinds of nodes of a function in C: methods have their objects."""
    owner = function.__self__
    return () if owner is None or _is_module(owner) else (Kind.FIXED,)


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the globals and of the attributes that code reads."""
    read, attributes = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READ_GLOBAL:
            read.add(instruction.argval)
        elif instruction.opname in _READ_ATTRIBUTE:
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_in(constant)
            read |= inner[0]
            attributes |= inner[1]
    return frozenset(read), frozenset(attributes)


def _globals_of(
    function: types.FunctionType, skip: Mapping[int, Iterable[str]]
) -> list[tuple[dict[str, Any], str, bool, int]]:
    """List the globals that a function reads, and the attributes of the modules among them."""
    # Each entry: namespace, name, whether to follow the value, and the index (from 1) of the module
    # that has the attribute, or 0 for a global.
    read, attributes = _names_in(function.__code__)
    namespace = function.__globals__
    entries = [(namespace, name, True, 0) for name in sorted(read - {*skip.get(id(namespace), ())})]
    entered = set[int]()
    # The list grows during the iteration, because attributes of modules may be modules.
    for index, (namespace, name, _, _) in enumerate(entries, 1):
        value = dict.get(namespace, name)
        if _is_module(value) and id(value) not in entered:
            entered.add(id(value))
            inner = _module_dict(value)
            is_user = _is_user_module(inner)
            names = sorted((attributes & inner.keys()) - {*skip.get(id(inner), ())})
            entries += [
                (inner, name, is_user or Kind.STATE in _layout_of(type(inner[name])).kinds, index)
                for name in names
            ]
    return entries


def _attributes_read_by(functions: Iterable[types.FunctionType]) -> set[str]:
    """Return the names of the attributes that functions read."""
    return set[str]().union(*(_names_in(function.__code__)[1] for function in functions))


def _is_named_by_code(snapshot: BaseSnapshot, index: int, position: int, names: set[str]) -> bool:
    """Return whether code names what leads to a value, through containers, partials and methods."""
    while index >= 0:
        kind, owner, parent, place, values = snapshot.node(index)
        cls = type(owner)
        if position >= 0 and not issubclass(cls, weakref.ref) and not _is_weak_container(cls):
            if kind in (Kind.FUNCTION, Kind.GLOBAL) or cls is functools.partial:
                return True
            if kind in (Kind.OBJECT, Kind.CLASS):
                return values[position - 1] in names
            if kind == Kind.SLOTS and not _is_one_of(cls, _WITH_MEMBERS):
                return values[position - 1].__name__ in names
        index, position = parent, place
    return True


def _target_of(reference: Any) -> Any:
    """Return the referent of a weak reference, or the weak references that a container holds."""
    if _is_weak_container(type(reference)):
        return object.__getattribute__(reference, "__dict__").get("data")
    return referent_of(reference)


def _names_to_skip(skip: Iterable[tuple[Any, str]]) -> dict[int, tuple[str, ...]]:
    """Return the names to skip by the address of the object that has them."""
    names: dict[int, tuple[str, ...]] = {}
    for value, name in skip:
        owners = [value]
        if _is_module(value):
            owners.append(_module_dict(value))
        elif type(value) is types.FunctionType:
            owners.append(value.__dict__)
        for owner in owners:
            names[id(owner)] = (*names.get(id(owner), ()), name)
    return names


def _read(kind: Kind, owner: Any, layout: _Layout, skip: Iterable[str]) -> list[Any]:
    """Return the values of an object, for the kinds that the walk itself cannot read."""
    cls = type(owner)
    if kind == Kind.FUNCTION:
        cells = owner.__closure__ or ()
        return [getattr(owner, name) for name in _HEADERS[kind]] + list(map(_get_cell, cells))
    if kind == Kind.SLOTS:
        pairs = [(slot, _get_slot(slot, owner)) for slot in layout.slots]
        return [part for pair in pairs if pair[0].__name__ not in skip for part in pair]
    if kind == Kind.WEAK:
        return [] if _is_weak_container(cls) else [referent_of(owner) is not None]
    if kind == Kind.STATE:
        return _read_state(owner, skip)
    if issubclass(cls, deque):
        return _list(deque.__iter__, owner)
    if issubclass(cls, OrderedDict):
        keys = _list(OrderedDict.__iter__, owner)
        keys = [key for key in keys if type(key) is not str or key not in skip]
        # The node of the dict itself has the keys too; this one is only for their order.
        return keys if len(keys) > 1 else []
    if cls is types.MethodType:
        return [owner.__func__, owner.__self__]
    if cls is types.FunctionType:
        return [owner.__dict__.get("__wrapped__")]
    if _is_one_of(cls, _BUILTINS):
        return [owner.__self__]
    iterate = tuple.__iter__ if issubclass(cls, tuple) else frozenset.__iter__
    return list(iterate(owner))


def _read_state(owner: Any, skip: Iterable[str]) -> list[Any]:
    """Return what a context variable, a thread-local or a ctypes object holds."""
    if type(owner) is contextvars.ContextVar:
        # A default that code passes to `get` only counts if the variable is not set.
        return [owner.get(ABSENT), _get_or_absent(owner.get, LookupError)]
    if issubclass(type(owner), threading.local):
        attributes = dict(_read_local(owner, "__dict__"))
        names = sorted(attributes.keys() - {*skip})
        return [part for name in names for part in (name, attributes[name])]
    return [memoryview(owner).tobytes()]


def _list(iterate: Callable[[Any], Iterable[Any]], owner: Any) -> list[Any]:
    """List the items of a container; retry if another thread changes it during iteration."""
    while True:
        with contextlib.suppress(RuntimeError):
            return list(iterate(owner))


def _get_cell(cell: types.CellType) -> Any:
    return _get_or_absent(lambda: cell.cell_contents, ValueError)


def _get_slot(slot: types.MemberDescriptorType, owner: Any) -> Any:
    # Another thread may have assigned `__class__`, and the new class may have other slots.
    return _get_or_absent(lambda: slot.__get__(owner), AttributeError, TypeError)


def _get_or_absent(get: Callable[[], Any], *errors: type[Exception]) -> Any:
    try:
        return get()
    except errors:
        return ABSENT


# --- the comparison of values ---------------------------------------------------------------------


def _find_difference(
    kind: Kind, then: Sequence[Any], now: Sequence[Any]
) -> tuple[Sequence[Any], int] | None:
    """Return the old or new values and the index of a difference, or None."""
    header = len(_HEADERS.get(kind, ()))
    difference = _find_in_order(then, now)
    if difference is None or kind not in _UNORDERED or difference[1] < header:
        return difference
    return _find_without_order(then, now, header, _STEPS[kind])


def _find_in_order(then: Sequence[Any], now: Sequence[Any]) -> tuple[Sequence[Any], int] | None:
    """Find the first difference of two sequences.

    If one is a beginning of the other, the first extra value of the longer one differs.
    """
    for index, (before, value) in enumerate(zip(then, now, strict=False)):
        if before is not value and token_of(before) != token_of(value):
            return then, index
    if len(then) == len(now):
        return None
    return max(then, now, key=len), min(len(then), len(now))


def _find_without_order(
    then: Sequence[Any], now: Sequence[Any], header: int, step: int
) -> tuple[Sequence[Any], int] | None:
    """Find a difference between elements (a step of 1) or names and values (a step of 2)."""
    unmatched: dict[Any, list[int]] = {}
    for index in range(header, len(now), step):
        unmatched.setdefault(token_of(now[index]), []).append(index)
    for index in range(header, len(then), step):
        matches = unmatched.get(token_of(then[index]))
        if not matches:
            return then, index
        # A set element is its own value.
        before, value = then[index + step - 1], now[matches.pop() + step - 1]
        if before is not value and token_of(before) != token_of(value):
            return then, index + step - 1
    added = [index for indices in unmatched.values() for index in indices]
    return (now, added[0]) if added else None


def token_of(value: Any, depth: int = 0) -> Any:
    """Return a token; two values have equal tokens only if a snapshot considers them equal."""
    cls = type(value)
    if cls is float:
        return cls, struct.pack("d", value)
    if cls is complex:
        return cls, struct.pack("dd", value.real, value.imag)
    if _is_one_of(cls, _ATOMS):
        return cls, value
    if cls is slice or cls is range:
        return cls, token_of((value.start, value.stop, value.step), depth)
    if cls is types.MethodType:
        return cls, id(value.__func__), id(value.__self__)
    if _is_one_of(cls, _PROXIES) or issubclass(cls, weakref.ref):
        referent = referent_of(value)
        return id(cls), id(value if referent is None else referent)
    if depth < _MAX_DEPTH and cls is frozenset:
        return cls, frozenset(Counter([token_of(member, depth + 1) for member in value]).items())
    if depth < _MAX_DEPTH and issubclass(cls, tuple) and not _dict_offset(cls):
        return id(cls), tuple([token_of(item, depth + 1) for item in tuple.__iter__(value)])
    if issubclass(cls, np.generic) and not is_mutable(cls) and cls is not np.void:
        return id(cls), str(value.dtype), value.tobytes()
    return id(value)


# Rare cases that the Cython walk and comparison delegate to Python.
_RULES = types.SimpleNamespace(
    attributes_read_by=_attributes_read_by,
    find_difference=_find_difference,
    globals_of=_globals_of,
    is_user_class=_is_user_class,
    is_named_by_code=_is_named_by_code,
    kinds_of_builtin=_kinds_of_builtin,
    kinds_of_function=_kinds_of_function,
    layout_of=_layout_of,
    read=_read,
    target_of=_target_of,
)
