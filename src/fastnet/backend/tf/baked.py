"""What of the objects around a graph is baked into it by a trace, and how to look at that."""

from __future__ import annotations

import array
import dataclasses
import sys
import zlib
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache, partial
from types import (
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Literal
from weakref import ref

import numpy as np
import tensorflow as tf

from fastnet.backend.model_metadata import taken_names
from fastnet.backend.packages import is_installed
from fastnet.backend.readers import (
    ABSENT,
    array_of,
    items_of,
    method_of,
    partial_of,
    value_of_context,
    value_of_slot,
)
from fastnet.backend.tf._keras_internals import (
    OF_KERAS,
    OF_MODELS,
    OF_OPTIMIZERS,
    OF_VARIABLES,
    TRACKING,
)
from fastnet.types import is_op

__all__ = [
    "GLOBALS",
    "Globals",
    "Look",
    "attributes_beside",
    "is_of_program",
    "is_plain",
    "is_variable",
    "look_at",
    "look_at_class",
    "looks_at_variables",
    "own_classes",
    "parts_of_class",
]

# larger containers are compared by what is in them, but not by what is in that
_MOST_ITEMS = 100_000
# arrays up to the first are compared by their bytes, up to the second by a sum of these, and larger
# ones by which they are
_MOST_BYTES = 1 << 16
_MOST_SUMMED = 1 << 24

_PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    np.generic,
    range,
    slice,
    tf.DType,
    tf.TensorShape,
    tf.TypeSpec,
)

_KERAS = frozenset({"keras", "tf_keras"})
_LIBRARIES = _KERAS | {"tensorflow", "numpy", "torch", "fastnet", "fastestimator", "h5py"}
# which hold none of the attributes of what derives from their classes
_BARE = frozenset({"builtins", "abc", "typing"})

Kind = Literal["attributes", "mapping", "sequence", "function"]


@dataclasses.dataclass(frozen=True)
class Look:
    """How to look at an object that can change.

    Attributes:
        kind: How its values are read (see `Seen`).
        passed_over: The names that do not matter, of values that have names.
        only: The only names that matter; None for all others.
        private_passed_over: Whether no name matters that begins with an underscore.
        by_value: Whether another object in its place, with the same values, is as good.
        goes_on: Whether what is in it is to be looked at as well.
        named: Whether only those names matter that code of the program reads.
        has_names: Whether what a callable `kind` reads are names, and then their values.
    """

    kind: Kind | Callable[[Any], list[Any]]
    passed_over: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    private_passed_over: bool = False
    by_value: bool = False
    goes_on: bool = True
    named: bool = False
    has_names: bool = False

    @property
    def is_paired(self) -> bool:
        """Whether what is read are names, and then their values."""
        return self.has_names or self.kind in ("attributes", "mapping")

    def names(self, owner: Any, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return the values that matter, each with its name, if it has one.

        Args:
            owner: The object.
            values: What `Seen` reads of it, now or before.

        Returns:
            Pairs; where values have no names, these are the empty string.
        """
        if self.kind == "function":
            cells = owner.__code__.co_freevars
            names: Sequence[Any] = ["__code__", "__defaults__", "__kwdefaults__", *cells]
            return list(zip(names, values, strict=False))
        if not self.is_paired:
            return [("", value) for value in values]
        half = len(values) // 2
        pairs = zip(values[:half], values[half:], strict=False)
        # a model may have a layer, or a number, where fastnet has its optimizer on others
        # (a variable has none, and may be one that is read on all workers to be asked)
        own = taken_names(owner) if self.kind == "attributes" and self.only is None else ()
        return [
            (name, value)
            for name, value in pairs
            if (self._matters(name) or name in own) and not _is_own_method(owner, name, value)
        ]

    def _matters(self, name: Any) -> bool:
        if self.only is not None:
            return name in self.only
        return name not in self.passed_over and not (
            self.private_passed_over and isinstance(name, str) and name.startswith("_")
        )


def _is_own_method(owner: Any, name: Any, value: Any) -> bool:
    """Return whether an attribute is the class's own method, as Keras 2 leaves it after saving."""
    return (
        type(value) is MethodType
        and value.__self__ is owner
        and getattr(type(owner), name, None) is value.__func__
    )


def is_plain(value: Any) -> bool:
    """Return whether a value is nothing but a value: a number, a string, None and the like."""
    return isinstance(value, _PLAIN)


def is_variable(value: Any) -> bool:
    """Return whether something is a variable, of TensorFlow or of Keras 3."""
    return isinstance(value, tf.Variable) or (
        _is_of_keras(value.__class__) and hasattr(value, "overwrite_with_gradient")
    )


def looks_at_variables(owner: Any) -> bool:
    """Return whether the variables that something holds are its to say what they are like.

    Args:
        owner: The object.

    Returns:
        False for optimizers, whose variables nobody freezes, and for variables of Keras 3 around
        those of TensorFlow.
    """
    # a variable first: asked for an attribute that it has not, one that each worker has for itself
    # is read on all of them
    return not (is_variable(owner) or hasattr(owner, "apply_gradients"))


def look_at(value: Any, called: bool = False) -> Look | None:
    """Find how to look at an object.

    Args:
        value: The object.
        called: Whether it stands where a function would, or is what a method is bound to, so that
            its attributes are read when that is called.

    Returns:
        How; None for one that can only be told from another by which it is.
    """
    if isinstance(value, type):
        return None
    # TensorFlow's wrappers of dicts say what they are around, and are of no such class
    look = _look_at(value.__class__)
    if look is _SEQUENCE or look is _MAPPING:
        return _large(look) if len(value) > _MOST_ITEMS else look
    if look is _FUNCTION:
        return None if _is_library(value.__module__) else look
    if look is _MODULE:
        return look if is_of_program(value.__name__) else None
    if look is _ARRAY:
        return _look_at_array(value)
    if look is not None:
        return look
    kind: Any = type(value)
    if _slots_of(kind):
        return _of_slots(kind)
    if not hasattr(value, "__dict__"):
        return None
    if is_op(value):
        return _OWN_OP if _package(kind) == "fastnet" else _OP
    if is_of_program(kind.__module__):
        return _NAMED_OBJECT if _is_bare(kind) else _OBJECT
    # whatever it is: a function, with what it remembers
    if (called or callable(value)) and not _is_library(kind.__module__):
        return _OBJECT
    return None


def attributes_beside(value: Any, look: Look) -> dict[str, Any] | None:
    """Find the attributes of a function, or of a container of a class of the program.

    Args:
        value: The object.
        look: How it is looked at.

    Returns:
        The attributes, where they are not what is looked at; None without any.
    """
    if look is _FUNCTION or (look.kind in ("sequence", "mapping") and own_classes(value.__class__)):
        return getattr(value, "__dict__", None)
    return None


def _look_at_array(value: Any) -> Look | None:
    if value.dtype.hasobject:
        return _OBJECTS if value.size <= _MOST_ITEMS else None
    if value.nbytes <= _MOST_BYTES:
        return _ARRAY
    return _SUMMED if value.nbytes <= _MOST_SUMMED else None


def look_at_class(kind: type) -> Look:
    """Find how to look at a class that the user has written.

    Args:
        kind: The class, one of `own_classes`.
    """
    return _NAMED_CLASS if _is_bare(kind) else _CLASS


def parts_of_class(kind: type, reads: Callable[[str], bool]) -> list[tuple[str, Any]]:
    """List what is to be looked at of a class that the user has written.

    Args:
        kind: The class.
        reads: Tells of a name whether code of the program reads it.

    Returns:
        Pairs of names and values. Of functions these are the ones that may run when ops do.
    """
    if not is_of_program(kind.__module__):
        return []
    libraries = [base for base in kind.__mro__ if _is_library(base.__module__)]
    named = look_at_class(kind).named
    found = []
    for name, part in vars(kind).items():
        is_called = name.startswith("__") and name not in _BEFORE
        if reads(name) or (
            is_called or any(hasattr(base, name) for base in libraries if name not in _BEFORE)
            if isinstance(part, _CODE)
            else not named
        ):
            found.append((name, part))
    return found


@lru_cache(maxsize=1024)
def _look_at(kind: Any) -> Look | None:
    for base, look in _KINDS:
        if issubclass(kind, base):
            return look
    if _is_of_keras(kind):
        if any(base.__name__ == "Initializer" for base in kind.__mro__):
            return None  # what it has made is there
        if hasattr(kind, "apply_gradients"):
            return _OPTIMIZER
        return _MODEL if hasattr(kind, "train_step") else _KERAS_OBJECT
    if issubclass(kind, (tf.Module, SimpleNamespace)) or dataclasses.is_dataclass(kind):
        has_dict = any("__dict__" in vars(base) for base in kind.__mro__)
        return _OBJECT if has_dict and not _slots_of(kind) else None
    return None


@lru_cache(maxsize=1024)
def _is_bare(kind: type) -> bool:
    """Return whether whatever reads attributes of a class is the program's code."""
    return all(base.__module__ in _BARE or is_of_program(base.__module__) for base in kind.__mro__)


@lru_cache(maxsize=1024)
def _slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """List the slots that classes of the program have, and what reads them."""
    return tuple(
        (name, part)
        for base in kind.__mro__
        if is_of_program(base.__module__)
        for name, part in vars(base).items()
        if isinstance(part, MemberDescriptorType)
    )


@lru_cache(maxsize=1024)
def _of_slots(kind: type) -> Look:
    slots = _slots_of(kind)

    def read(value: Any) -> list[Any]:
        own = getattr(value, "__dict__", {})
        found = {**own, **{name: value_of_slot(part, value) for name, part in slots}}
        return [*found, *found.values()]

    return Look(read, has_names=True)


@lru_cache(maxsize=1024)
def own_classes(kind: type) -> tuple[type, ...]:
    """List the classes among a class and its bases that the user has written."""
    return tuple(base for base in kind.__mro__ if not _is_library(base.__module__))


@lru_cache(maxsize=1024)
def _is_of_keras(kind: type) -> bool:
    return any(_package(base) in _KERAS for base in kind.__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


@lru_cache(maxsize=1024)
def _is_library(module: str | None) -> bool:
    package = (module or "builtins").partition(".")[0]
    return package in _LIBRARIES or (package != "__main__" and package in sys.stdlib_module_names)


@lru_cache(maxsize=1024)
def is_of_program(module: str | None) -> bool:
    """Return whether a module is neither a library nor installed, but the program's own.

    Args:
        module: Its name.
    """
    if _is_library(module):
        return False
    return not is_installed(getattr(sys.modules.get(module or ""), "__file__", None) or "")


class Globals:
    """The globals that functions read.

    Args:
        table: The table of their module.
    """

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.names: list[str] = []

    def read(self) -> list[Any]:
        """List their names, and then their values."""
        return [*self.names, *[self.table.get(name, ABSENT) for name in self.names]]


def _summed(value: Any) -> list[Any]:
    whole: Any = np.ascontiguousarray(value).reshape(-1).view("u1")
    return [f"{value.dtype.str} {value.shape}", zlib.crc32(whole)]


def _objects(value: Any) -> list[Any]:
    return [f"{value.shape}", *value.flat]


def _bytes(value: Any) -> list[Any]:
    return [f"{type(value)}", bytes(value)]


def _wrapped(value: Any) -> list[Any]:
    return [
        getattr(value, name)
        for name in ("__func__", "__wrapped__", "fget", "func")
        if hasattr(value, name)
    ]


def _referred(value: Any) -> list[Any]:
    return [value()]


_OBJECT = Look("attributes", passed_over=TRACKING)
# which ops are in force is not for a graph of them to say
_OP = Look("attributes", passed_over=frozenset({"mode", "ds_id"}))
_OWN_OP = Look("attributes", passed_over=frozenset({"mode", "ds_id"}), private_passed_over=True)
_KERAS_OBJECT = Look("attributes", passed_over=OF_KERAS)
_MODEL = Look("attributes", passed_over=OF_MODELS)
_OPTIMIZER = Look("attributes", passed_over=OF_OPTIMIZERS)
_SEQUENCE = Look("sequence", by_value=True)
_SET = Look("sequence", by_value=True, goes_on=False)
_MAPPING = Look("mapping", by_value=True)
_FUNCTION = Look("function")
_PARTIAL = Look(partial_of, by_value=True)
_METHOD = Look(method_of, by_value=True)
_ARRAY = Look(array_of, by_value=True, goes_on=False)
_VARIABLE = Look("attributes", only=OF_VARIABLES)
_NAMED_OBJECT = Look("attributes", passed_over=TRACKING, named=True)
_OBJECTS = Look(_objects, by_value=True)
_SUMMED = Look(_summed, by_value=True, goes_on=False)
_BYTES = Look(_bytes, by_value=True, goes_on=False)
_DEQUE = Look(list, by_value=True)
_WRAPPER = Look(_wrapped, by_value=True)
_CONTEXT = Look(value_of_context)
_REFERENCE = Look(_referred)
_VIEW = Look(items_of, by_value=True, has_names=True)
_MODULE = Look("attributes", passed_over=frozenset({"__builtins__"}), named=True)
_OF_CLASSES = frozenset({"__doc__", "__annotations__", "__weakref__", "__dict__"})
_CLASS = Look("attributes", passed_over=_OF_CLASSES, goes_on=False)
_NAMED_CLASS = dataclasses.replace(_CLASS, named=True)
GLOBALS = Look(Globals.read, has_names=True, goes_on=False)
"""How to look at `Globals`."""

# what runs before an object is there, or when it is shown, saved or gone
_BEFORE = frozenset(
    {"__init__", "__new__", "__del__", "__repr__", "__str__", "__getstate__", "__setstate__"}
)
_CACHE = type(cache(len))
_CODE = (FunctionType, property, staticmethod, classmethod, cached_property, _CACHE)

_KINDS: tuple[tuple[type, Look], ...] = (
    (tf.Variable, _VARIABLE),
    (list, _SEQUENCE),
    (tuple, _SEQUENCE),
    (set, _SET),
    (frozenset, _SET),
    (dict, _MAPPING),
    (np.ndarray, _ARRAY),
    (FunctionType, _FUNCTION),
    (MethodType, _METHOD),
    (partial, _PARTIAL),
    (ModuleType, _MODULE),
    (deque, _DEQUE),
    (bytearray, _BYTES),
    (array.array, _BYTES),
    (MappingProxyType, _VIEW),
    (ContextVar, _CONTEXT),
    (ref, _REFERENCE),
    *((kind, _WRAPPER) for kind in _CODE[1:]),
    *((kind, _OBJECT) for kind in (UserDict, UserList, Namespace)),
)


@lru_cache(maxsize=8)
def _large(look: Look) -> Look:
    return dataclasses.replace(look, goes_on=False)
