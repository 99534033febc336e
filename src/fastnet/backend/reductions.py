"""Reductions along axes."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten

__all__ = [
    "percentile",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_std",
    "reduce_sum",
]

T = TypeVar("T")


def reduce_mean(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Return the mean along axes, of the shape of the tensor without these axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes to reduce; negative values count from the end. None for all axes.
        keepdims: Whether to keep the reduced axes with length 1.

    >>> import numpy as np
    >>> reduce_mean(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([2., 3.])
    """
    return backend_of(tensor).reduce_mean(tensor, _axes(axis), keepdims)


def reduce_sum(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Return the sum along axes; see `reduce_mean` for the arguments.

    >>> import numpy as np
    >>> reduce_sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([4., 6.])
    """
    return backend_of(tensor).reduce_sum(tensor, _axes(axis), keepdims)


def reduce_std(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Return the population standard deviation along axes; see `reduce_mean` for the arguments.

    >>> import numpy as np
    >>> reduce_std(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([1., 1.])
    """
    return backend_of(tensor).reduce_std(tensor, _axes(axis), keepdims)


def reduce_max(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Return the maximum along axes; see `reduce_mean` for the arguments.

    >>> import numpy as np
    >>> reduce_max(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([3., 4.])
    """
    return backend_of(tensor).reduce_max(tensor, _axes(axis), keepdims)


def reduce_min(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Return the minimum along axes; see `reduce_mean` for the arguments.

    >>> import numpy as np
    >>> reduce_min(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([1., 2.])
    """
    return backend_of(tensor).reduce_min(tensor, _axes(axis), keepdims)


def percentile(
    tensor: T,
    percentiles: float | Sequence[float],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = True,
) -> T:
    """Compute percentiles along axes, without interpolation.

    Args:
        tensor: A tensor of any shape.
        percentiles: One or several percentiles, from 0 to 100.
        axis: The axis or axes to reduce; negative values count from the end. None for all axes.
        keepdims: Whether to keep the reduced axes with length 1.

    Returns:
        Elements of the tensor: between two of them, the lower one. Several percentiles are stacked
        along a new first axis.

    Raises:
        ValueError: If a percentile is not between 0 and 100.

    >>> import numpy as np
    >>> percentile(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 50, axis=1, keepdims=False)
    array([2., 5.])
    """
    is_single = isinstance(percentiles, Real)
    ranks: Any = [percentiles] if is_single else percentiles
    if not all(0 <= rank <= 100 for rank in ranks):
        raise ValueError(
            f"Percentiles must be numbers from 0 to 100, but got {shorten(percentiles)}."
        )
    results = backend_of(tensor).percentile(tensor, ranks, _axes(axis), keepdims)
    return results[0] if is_single else results


def _axes(axis: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if isinstance(axis, int):
        return (axis,)
    return None if axis is None else tuple(axis)
