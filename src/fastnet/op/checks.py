"""Validation of ops and of their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeGuard

from fastnet.errors import advise_on_op, shorten
from fastnet.types import OP_ATTRIBUTES, SLICER_ATTRIBUTES, missing_attributes

_ATTRIBUTES = {
    "a TensorOp": OP_ATTRIBUTES,
    "a NumpyOp": (*OP_ATTRIBUTES, "forward_batch"),
    "a Slicer": SLICER_ATTRIBUTES,
}


def describe_wrong_item(item: Any, needed: str) -> str:
    """Return what an item is that should be an op or a slicer, and what to do about it."""
    shown, advice = type(item).__name__, advise_on_op(item) if needed == "a TensorOp" else None
    attributes = _ATTRIBUTES[needed]
    lacking = missing_attributes(item, attributes)
    if isinstance(item, type):
        shown, advice = f"the class {item.__name__}", f"Pass an instance: {item.__name__}(...)."
        if {base.__name__ for base in item.__mro__} & {"Module", "Layer"}:
            advice = f"Wrap it: ModelOp(fastnet.build({item.__name__}, ...), inputs=..., ...)."
    elif "mode" in lacking and {base.__name__ for base in type(item).__mro__} & {"Op", "Slicer"}:
        return (
            f"{shown}, but {shown}.__init__ does not call super().__init__(...), which sets its "
            "keys and modes."
        )
    elif advice is None:
        lacks = f" (it lacks {lacking})" if len(lacking) < len(attributes) else ""
        advice = f"Pass {needed}, or an object with the same attributes{lacks}."
    return f"{shown}, not {needed}. {advice}"


def is_number(value: object) -> TypeGuard[Any]:
    """Return whether a value is a number of Python, numpy or a framework.

    >>> is_number(0.5), is_number("0.5"), is_number(None)
    (True, False, False)
    """
    return hasattr(value, "__float__")


def is_int(value: object) -> TypeGuard[Any]:
    """Return whether a value is an int of Python or numpy."""
    return hasattr(value, "__index__")


def read_shape(shape: object) -> list[Any] | None:
    """Return a shape as a list with at most one -1, or None if it is not a shape.

    >>> read_shape(4), read_shape((2, -1)), read_shape((-1, -1)), read_shape(1.5)
    ([4], [2, -1], None, None)
    """
    if is_int(shape):
        shape = [shape]
    if not isinstance(shape, Iterable):
        return None
    lengths = list(shape)
    are_valid = all(is_int(length) and length >= -1 for length in lengths)
    return lengths if are_valid and lengths.count(-1) <= 1 else None


def read_permutation(axes: object) -> list[Any] | None:
    """Return a permutation of axes as a list, or None if it is not a permutation.

    >>> read_permutation((0, -1, 1)), read_permutation((0, 0)), read_permutation((0, 5, 1))
    ([0, -1, 1], None, None)
    """
    if not isinstance(axes, Iterable):
        return None
    order = list(axes)
    count = len(order)
    if not all(is_int(axis) and -count <= axis < count for axis in order):
        return None
    return order if {axis % count for axis in order} == set(range(count)) else None


def require_function(op: object, name: str, given: object) -> None:
    """Raise a TypeError if the function of an op is not callable, or the class of a loss."""
    if not callable(given):
        raise TypeError(
            f"{type(op).__name__}'s {name} must be a function, not {shorten(given)} of type "
            f"{type(given).__name__}."
        )
    function = given.func if isinstance(given, partial) else given
    if isinstance(function, type) and any(map(_is_base, function.__mro__)):
        raise TypeError(
            f"{op!r} has the class {function.__name__} as its {name}: calling it would construct "
            f"one with the values of {list(getattr(op, 'inputs', ()))} as its settings. Pass an "
            f"instance: {function.__name__}(...)."
        )


def _is_base(base: type) -> bool:
    """Whether a class is the base class of a framework's losses or layers."""
    package = base.__module__.partition(".")[0]
    return base.__name__ in ("Module", "Loss", "Layer") and package in (
        "torch",
        "keras",
        "tf_keras",
        "tensorflow",
    )


def require_arguments(
    op: object, name: str, function: Callable[..., Any], inputs: Sequence[str]
) -> None:
    """Raise a ValueError if a function with a known signature cannot take one value per input."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        raise ValueError(
            f"{type(op).__name__} calls its {name} with one argument for each input, but its "
            f"inputs are {list(inputs)}, and the {name} takes {signature}: {error}."
        ) from None


def require_weights(op: object, name: str, counted: str, given: object) -> None:
    """Raise an AssertionError if a setting is not a dict of numbers by int index."""
    setting = f"{type(op).__name__}'s {name}"
    if not isinstance(given, dict):
        raise AssertionError(f"{setting} must be a dict, not {type(given).__name__}.")
    for index, weight in given.items():
        if not isinstance(index, int):
            raise AssertionError(
                f"The keys of {setting} must be {counted} indices of type int, but "
                f"{shorten(index)} is of type {type(index).__name__}."
            )
        if not isinstance(weight, (int, float)):
            raise AssertionError(
                f"The values of {setting} must be numbers, but that of {counted} {index} is "
                f"{shorten(weight)}, of type {type(weight).__name__}."
            )
