"""Measures how far an array is from that of the same step run as a graph, and disturbs arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastnet.network.deviations import Deviation
from fastnet.network.verification_limits import EPSILONS

# The number of elements that are converted to float64 at a time.
_CHUNK = 1 << 20


def deviation_of(
    actual: Any,
    expected: Any,
    precision: str,
    actual_before: Any = None,
    expected_before: Any = None,
) -> Deviation:
    """Compare an array with that of a reference step.

    Args:
        actual: The array after a step.
        expected: The array after the reference step, of the same shape and dtype.
        precision: The name of the dtype of the lowest precision in the step.
        actual_before: The array before the step; None for results, of which values are compared.
        expected_before: The array before the reference step.
    """
    size = expected.size
    if not is_inexact(expected):
        return Deviation(0.0, 0.0, 0.0, 0.0, _share(np.sum(actual != expected), size), size)

    squares, differing = np.zeros(3), 0
    chunks = [
        _chunks(array, expected) for array in (expected_before, expected, actual_before, actual)
    ]
    for expected_start, expected_end, actual_start, actual_end in zip(*chunks, strict=True):
        finite = np.isfinite(expected_end) & np.isfinite(actual_end)
        is_same = (actual_end == expected_end) | (np.isnan(actual_end) & np.isnan(expected_end))
        differing += int(np.sum(~(finite | is_same)))
        # Elements that were infinite before are compared by their values.
        change = (expected_end - _finite(expected_start))[finite]
        actual_change = (actual_end - _finite(actual_start))[finite]
        squares += [
            float(np.sum(np.abs(values) ** 2))
            for values in (actual_change - change, actual_change, change)
        ]
    distance, actual_norm, expected_norm = map(float, np.sqrt(squares))
    return Deviation(
        distance=math.inf if math.isnan(distance) else distance,
        change=actual_norm,
        expected=expected_norm,
        rounding=_rounding(expected, expected_before, expected_norm, precision),
        share=_share(differing, size),
        size=size,
    )


def _rounding(expected: Any, before: Any, change: float, precision: str) -> float:
    """Return the norm of the rounding errors that the values of an array may have."""
    rounding = 0.0
    if before is not None:
        epsilon = EPSILONS.get(expected.dtype.name, EPSILONS["float32"])
        rounding = 2 * epsilon * norm(before)
    if before is None or not change:
        # Compared with quantities of size 1, which may have cancelled.
        rounding += EPSILONS[precision] * math.sqrt(expected.size)
    return rounding


def norm(array: Any) -> float:
    """Return the L2 norm of the finite elements of an array of floating-point numbers."""
    chunks = (chunk[np.isfinite(chunk)] for chunk in _chunks(array, array))
    return math.sqrt(sum(float(np.sum(np.abs(chunk) ** 2)) for chunk in chunks))


def disturb(array: Any, size: float, source: np.random.Generator) -> Any:
    """Return an array with relative errors of a given size.

    Whole numbers stay as they are: they may be classes, counts or masks.
    """
    if not is_inexact(array):
        return array
    disturbed = np.array(array)
    flat = disturbed.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        chunk = _wide(flat[start : start + _CHUNK])
        noise = chunk * (1 + size * source.standard_normal(chunk.shape))
        flat[start : start + _CHUNK] = np.where(chunk == np.round(chunk), chunk, noise)
    return disturbed


def is_inexact(array: Any) -> bool:
    """Return whether an array consists of real or complex floating-point numbers."""
    return array.dtype.kind in "fc" or array.dtype.name in EPSILONS


def _share(count: int, size: int) -> float:
    return float(count) / max(size, 1)


def _finite(array: Any) -> Any:
    return np.where(np.isfinite(array), array, 0)


def _chunks(array: Any, like: Any) -> Iterator[Any]:
    if array is None:
        array = np.broadcast_to(np.zeros((), like.dtype), like.shape)
    for start in range(0, like.size, _CHUNK):
        yield _wide(array.reshape(-1)[start : start + _CHUNK])


def _wide(array: Any) -> Any:
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")
