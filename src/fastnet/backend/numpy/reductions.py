"""Sums, means, extremes and percentiles over axes of numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "mean_of",
    "percentile",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_std",
    "reduce_sum",
    "settled_axes",
    "sum_of",
]

Array: TypeAlias = NDArray[Any]

# The framework's own functions: like those below, but they must not be called with an empty list
# of axes.
mean_of, sum_of = np.mean, np.sum


def settled_axes(axes: Sequence[int]) -> Any:
    """Make of several axes what `sum_of` takes, for all steps."""
    return tuple(axes)


def reduce_mean(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Any:
    """Average an array over some axes, or over all of them."""
    return np.mean(tensor, axis=_axes(axis), keepdims=keepdims)


def reduce_sum(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Any:
    """Add an array up over some axes, or over all of them."""
    return np.sum(tensor, axis=_axes(axis), keepdims=keepdims)


def reduce_std(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Any:
    """Find the standard deviation over some axes, or over all of them."""
    return np.std(tensor, axis=_axes(axis), keepdims=keepdims)


def reduce_max(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Any:
    """Find the largest values over some axes, or over all of them."""
    return np.max(tensor, axis=_axes(axis), keepdims=keepdims)


def reduce_min(tensor: Array, axis: Sequence[int] | None, keepdims: bool) -> Any:
    """Find the smallest values over some axes, or over all of them."""
    return np.min(tensor, axis=_axes(axis), keepdims=keepdims)


def percentile(
    tensor: Array, percentiles: Sequence[float], axis: Sequence[int] | None, keepdims: bool
) -> Any:
    """Find values below which given parts of an array lie, stacked along a new first axis."""
    return np.percentile(
        tensor, list(percentiles), axis=_axes(axis), keepdims=keepdims, method="lower"
    )


def _axes(axis: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axis is None else tuple(axis)
