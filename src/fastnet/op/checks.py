"""Validation of ops and of their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeGuard

from fastnet.errors import advise_on_op, shorten
from fastnet.types import OP_ATTRIBUTES, SLICER_ATTRIBUTES, missing_attributes

_REQUIRED_ATTRIBUTES = {
    "a TensorOp": OP_ATTRIBUTES,
    "a NumpyOp": (*OP_ATTRIBUTES, "forward_batch"),
    "a Slicer": SLICER_ATTRIBUTES,
}


def describe_wrong_item(item: Any, needed: str) -> str:
    """Describe an item that is not the op or slicer that is `needed`, with advice."""
    if isinstance(item, type):
        name = item.__name__
        advice = f"Pass an instance: {name}(...)."
        if _base_names(item) & {"Module", "Layer"}:
            advice = f"Wrap it: ModelOp(fastnet.build({name}, ...), inputs=..., ...)."
        return f"the class {name}, not {needed}. {advice}"
    name = type(item).__name__
    attributes = _REQUIRED_ATTRIBUTES[needed]
    missing = missing_attributes(item, attributes)
    if "mode" in missing and _base_names(type(item)) & {"Op", "Slicer"}:
        return (
            f"{name}, but {name}.__init__ does not call super().__init__(...), which sets its "
            "keys and modes."
        )
    special_advice = advise_on_op(item) if needed == "a TensorOp" else None
    if special_advice is not None:
        return f"{name}, not {needed}. {special_advice}"
    lacks = f" (it lacks {missing})" if len(missing) < len(attributes) else ""
    return f"{name}, not {needed}. Pass {needed}, or an object with the same attributes{lacks}."


def _base_names(cls: type) -> set[str]:
    return {base.__name__ for base in cls.__mro__}


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


def require_function(op: object, name: str, value: object) -> None:
    """Raise a TypeError if a setting is not callable, or is a class of losses or layers."""
    if not callable(value):
        raise TypeError(
            f"{type(op).__name__}'s {name} must be a function, not {shorten(value)} of type "
            f"{type(value).__name__}."
        )
    function = value.func if isinstance(value, partial) else value
    if isinstance(function, type) and any(map(_is_framework_base, function.__mro__)):
        raise TypeError(
            f"{op!r} has the class {function.__name__} as its {name}: calling it would construct "
            f"an instance with the values of {list(getattr(op, 'inputs', ()))} as its settings. "
            f"Pass an instance: {function.__name__}(...)."
        )


def _is_framework_base(cls: type) -> bool:
    """Return whether a class is the base class of a framework's losses or layers."""
    package = cls.__module__.partition(".")[0]
    return cls.__name__ in ("Module", "Loss", "Layer") and package in (
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


def require_weights(op: object, name: str, noun: str, weights: object) -> None:
    """Raise an AssertionError if a setting is not a dict of numbers by int index.

    The noun is "class" or "channel", for error texts.
    """
    setting = f"{type(op).__name__}'s {name}"
    if not isinstance(weights, dict):
        raise AssertionError(f"{setting} must be a dict, not {type(weights).__name__}.")
    for index, weight in weights.items():
        if not isinstance(index, int):
            raise AssertionError(
                f"The keys of {setting} must be {noun} indices of type int, but "
                f"{shorten(index)} is of type {type(index).__name__}."
            )
        if not isinstance(weight, (int, float)):
            raise AssertionError(
                f"The values of {setting} must be numbers, but that of {noun} {index} is "
                f"{shorten(weight)}, of type {type(weight).__name__}."
            )
