"""What of the objects around a graph is baked into it by a trace, and how to look at that."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from fastnet.backend.facts import taken_names
from fastnet.backend.tf._keras_internals import (
    OF_KERAS,
    OF_MODELS,
    OF_OPTIMIZERS,
    OF_VARIABLES,
    TRACKING,
)
from fastnet.types import is_op

__all__ = [
    "CLASS",
    "Look",
    "is_plain",
    "is_variable",
    "look_at",
    "looks_at_variables",
    "own_classes",
]

# larger containers are compared by what is in them, but not by what is in that; larger arrays by
# which they are
_MOST_ITEMS = 1_000
_MOST_BYTES = 1 << 16

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
    """

    kind: Kind | Callable[[Any], list[Any]]
    passed_over: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    private_passed_over: bool = False
    by_value: bool = False
    goes_on: bool = True

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
        if self.kind not in ("attributes", "mapping"):
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
    if look is _ARRAY:
        return look if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject else None
    if look is not None or not hasattr(value, "__dict__"):
        return look
    if is_op(value):
        return _OWN_OP if _package(type(value)) == "fastnet" else _OP
    # whatever it is: a function, with what it remembers
    if (called or callable(value)) and not _is_library(type(value).__module__):
        return _OBJECT
    return None


@lru_cache(maxsize=1024)
def _look_at(kind: type) -> Look | None:
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
        return _OBJECT if has_dict else None
    return None


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


def _partial(value: Any) -> list[Any]:
    return [value.func, *value.args, *value.keywords, *value.keywords.values()]


def _method(value: Any) -> list[Any]:
    return [value.__self__, value.__func__]


def _array(value: Any) -> list[Any]:
    return [f"{value.dtype.str} {value.shape}", value.tobytes()]


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
_PARTIAL = Look(_partial, by_value=True)
_METHOD = Look(_method, by_value=True)
_ARRAY = Look(_array, by_value=True, goes_on=False)
_VARIABLE = Look("attributes", only=OF_VARIABLES)
CLASS = Look("attributes", passed_over=frozenset({"__doc__", "__annotations__"}), goes_on=False)
"""How to look at a class that the user has written."""

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
)


@lru_cache(maxsize=8)
def _large(look: Look) -> Look:
    return dataclasses.replace(look, goes_on=False)
