"""Comparing what two ways to run a program have seen."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(expected: Any, actual: Any, at: str, close: float = 0.0) -> str | None:
    """Return where two nests differ first.

    Args:
        expected: What the oracle has seen.
        actual: What fastnet has seen.
        at: What they are, for the text.
        close: How far numbers may be apart, of their size and beside it; 0 for equal to the bit.

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
