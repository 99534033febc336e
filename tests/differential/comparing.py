"""Compares two runs of a random program; FASTNET_PROGRAMS says how many run in each framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

# For each action its result, or what it raised, and what was observed afterwards.
Seen = list[tuple[Any, Any]]


def seeds(count: int) -> list[int]:
    """Return the numbers of the programs that run."""
    first = int(os.environ.get("FASTNET_FIRST_PROGRAM", "0"))
    return list(range(first, first + int(os.environ.get("FASTNET_PROGRAMS", count))))


def first_difference(
    actions: Sequence[Any],
    expected: Seen,
    actual: Seen,
    close: float = 0.0,
    same_errors: bool = True,
) -> str | None:
    """Return at which action two runs of a program differ first, and how.

    Without `same_errors`, errors may be of any type: TensorFlow's graphs raise others.
    """
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        (told, state), (own_told, own_state) = one, other
        place = f"action {number}, {actions[number]}"
        if isinstance(told, BaseException) or isinstance(own_told, BaseException):
            kind = type(told) if isinstance(told, BaseException) and same_errors else Exception
            if not isinstance(told, kind) or not isinstance(own_told, kind):
                return f"{place}: {told!r} by the oracle, {own_told!r} by fastnet"
        else:
            found = difference(told, own_told, f"{place}: the result", close)
            if found is not None:
                return found
        found = difference(state, own_state, f"{place}: afterwards", close)
        if found is not None:
            return found
    return None


def difference(expected: Any, actual: Any, at: str, close: float = 0.0) -> str | None:
    """Return where two nests differ first.

    Args:
        expected: What the oracle has seen.
        actual: What fastnet has seen.
        at: What they are, for the text.
        close: How far numbers may be apart, of their size and beside it; 0 for equal bit for bit.

    Returns:
        Where they differ and how, or None.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            only = sorted(map(str, expected.keys() - actual.keys()))
            more = sorted(map(str, actual.keys() - expected.keys()))
            return f"{at}: only the oracle has {only}, only fastnet has {more}"
        pairs = [(f"{at} / {key}", expected[key], actual[key]) for key in expected]
    elif isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            return f"{at}: {len(expected)} by the oracle, {len(actual)} by fastnet"
        pairs = [
            (f"{at}[{place}]", *both)
            for place, both in enumerate(zip(expected, actual, strict=True))
        ]
    else:
        return _difference_of_leaves(expected, actual, at, close)
    for name, one, other in pairs:
        found = difference(one, other, name, close)
        if found is not None:
            return found
    return None


def _difference_of_leaves(expected: Any, actual: Any, at: str, close: float) -> str | None:
    if not hasattr(expected, "dtype") or not hasattr(actual, "dtype"):
        same = type(expected) is type(actual) and expected == actual
        return None if same else f"{at}: {expected!r} by the oracle, {actual!r} by fastnet"
    one, other = (
        (str(each.dtype), tuple(each.shape), getattr(each, "requires_grad", False))
        for each in (expected, actual)
    )
    if one != other:
        return f"{at}: {one} by the oracle, {other} by fastnet"
    first, second = _array(expected), _array(actual)
    if close and first.dtype.kind == "f":
        same = np.allclose(first, second, rtol=close, atol=close, equal_nan=True)
    else:
        same = np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return None if same else f"{at}:\n{first!r} by the oracle,\n{second!r} by fastnet"


def _array(value: Any) -> Any:
    if type(value).__module__.startswith("torch"):
        # numpy has no bfloat16
        return value.double().numpy() if value.is_floating_point() else value.numpy()
    return np.asarray(value)
