"""What ops ask of the settings that they are made with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

from fastnet.errors import shorten

__all__ = [
    "axes_in_order",
    "check_keys",
    "is_int",
    "is_number",
    "lengths_of",
    "parse_probabilities",
    "require_arguments",
    "require_function",
    "require_weights",
]


def is_number(value: object) -> TypeGuard[Any]:
    """Return whether a setting can be compared with numbers.

    Args:
        value: The setting.

    Returns:
        True for a number, Python's, numpy's or a framework's.

    >>> is_number(0.5), is_number("0.5"), is_number(None)
    (True, False, False)
    """
    return hasattr(value, "__float__")


def is_int(value: object) -> TypeGuard[Any]:
    """Return whether a setting is a whole number, by its type.

    Args:
        value: The setting.

    Returns:
        True for an int, Python's or numpy's.

    >>> is_int(2), is_int(2.0), is_int("2")
    (True, False, False)
    """
    return hasattr(value, "__index__")


def lengths_of(shape: object) -> list[Any] | None:
    """Read a shape that is a length, or several.

    Args:
        shape: The setting.

    Returns:
        The lengths, at most one of them -1, for what is left; None if this is no shape.

    >>> lengths_of(4), lengths_of((2, -1)), lengths_of((-1, -1)), lengths_of(1.5)
    ([4], [2, -1], None, None)
    """
    if is_int(shape):
        shape = [shape]
    if not isinstance(shape, Iterable):
        return None
    lengths = list(shape)
    whole = all(is_int(one) and one >= -1 for one in lengths)
    return lengths if whole and lengths.count(-1) <= 1 else None


def axes_in_order(axes: object) -> list[Any] | None:
    """Read an order of axes.

    Args:
        axes: The setting.

    Returns:
        The axes, each in it once, some perhaps counted from the end; None if this is no order.

    >>> axes_in_order((0, -1, 1)), axes_in_order((0, 0)), axes_in_order((0, 5, 1))
    ([0, -1, 1], None, None)
    """
    if not isinstance(axes, Iterable):
        return None
    order = list(axes)
    count = len(order)
    if not all(is_int(axis) and -count <= axis < count for axis in order):
        return None
    return order if {axis % count for axis in order} == set(range(count)) else None


def parse_probabilities(probs: object, count: int) -> list[float] | None:
    """Read probabilities.

    Args:
        probs: The setting.
        count: How many of them there are to be.

    Returns:
        The probabilities; None if they are not as many, of at least 0, adding up to 1.

    >>> (
    ...     parse_probabilities((0.5, 0.5), 2),
    ...     parse_probabilities([0.5, 0.6], 2),
    ...     parse_probabilities([1.0], 2),
    ... )
    ([0.5, 0.5], None, None)
    """
    if not isinstance(probs, Iterable):
        return None
    shares = list(probs)
    if len(shares) != count or not all(map(is_number, shares)):
        return None
    # written so that NaN is refused
    return shares if min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-8 else None


def require_function(op: object, name: str, given: object) -> None:
    """Refuse what cannot be called.

    Args:
        op: The op.
        name: What the op calls the function.
        given: What it was given.

    Raises:
        TypeError: If it cannot be called.
    """
    if not callable(given):
        raise TypeError(
            f"{type(op).__name__}'s {name} is a function, not {shorten(given)} of type "
            f"{type(given).__name__}."
        )


def check_keys(ops: Iterable[Any]) -> None:
    """Ask ops whether their keys are fine, which only those do that have a `check_keys`.

    Not asked when an op is made: outside of a network any keys are as good as others.

    Args:
        ops: The ops.

    Raises:
        ValueError: If there are too many keys, or too few, of one.
    """
    for op in ops:
        check = getattr(op, "check_keys", None)
        if check is not None:
            check()


def require_arguments(
    op: object, name: str, function: Callable[..., Any], inputs: Sequence[str]
) -> None:
    """Refuse a function that cannot take a value for each input.

    Args:
        op: The op.
        name: What the op calls the function.
        function: The function; one that does not tell what it takes is not refused.
        inputs: The op's inputs.

    Raises:
        ValueError: If it takes more arguments, or fewer.
    """
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
    """Refuse what is no dict of weights by index.

    Args:
        op: The op.
        name: What the op calls the weights.
        counted: What the indices count, in the singular.
        given: What it was given.

    Raises:
        AssertionError: If it is no dict, a key is no int, or a value no float.
    """
    setting = f"{type(op).__name__}'s {name}"
    if not isinstance(given, dict):
        raise AssertionError(f"{setting} is a dict, not {type(given).__name__}.")
    for index, weight in given.items():
        if not isinstance(index, int):
            raise AssertionError(
                f"The keys of {setting} are {counted} indices of type int, but {shorten(index)} is "
                f"of type {type(index).__name__}."
            )
        if not isinstance(weight, float):
            raise AssertionError(
                f"The values of {setting} are of type float, but that of {counted} {index} is "
                f"{shorten(weight)}, of type {type(weight).__name__}."
            )
