"""Sums, means, extremes and percentiles over axes of the tensors of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

from fastnet.backend.dispatch import implementation
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
    """Average a tensor over some of its axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        The means, of the shape that is left.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reduce_mean(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([2., 3.])
    """
    reduced: T = implementation(tensor).reduce_mean(tensor, axes_of(axis), keepdims)
    return reduced


def reduce_sum(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Add a tensor up over some of its axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        The sums, of the shape that is left.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reduce_sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([4., 6.])
    """
    reduced: T = implementation(tensor).reduce_sum(tensor, axes_of(axis), keepdims)
    return reduced


def reduce_std(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Find a tensor's standard deviation over some of its axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        The deviations, those of a whole population, of the shape that is left.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reduce_std(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([1., 1.])
    """
    reduced: T = implementation(tensor).reduce_std(tensor, axes_of(axis), keepdims)
    return reduced


def reduce_max(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Find a tensor's largest values over some of its axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        The largest values, of the shape that is left.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reduce_max(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([3., 4.])
    """
    reduced: T = implementation(tensor).reduce_max(tensor, axes_of(axis), keepdims)
    return reduced


def reduce_min(tensor: T, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
    """Find a tensor's smallest values over some of its axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        The smallest values, of the shape that is left.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reduce_min(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([1., 2.])
    """
    reduced: T = implementation(tensor).reduce_min(tensor, axes_of(axis), keepdims)
    return reduced


def percentile(
    tensor: T,
    percentiles: float | Sequence[float],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = True,
) -> T:
    """Find the values below which given parts of a tensor lie.

    Args:
        tensor: A tensor of any shape.
        percentiles: The parts, each from 0 to 100: a number, or several.
        axis: The axis or axes, which may be counted from the end. None for all of them.
        keepdims: Whether the axes stay, with length 1.

    Returns:
        Elements of the tensor: where a percentile falls between two, the lower one. For several
        percentiles a new first axis has one for each.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows, or a percentile lies
            outside.

    >>> import numpy as np
    >>> percentile(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), [0, 50], axis=1)
    array([[[1.],
            [4.]],
    <BLANKLINE>
           [[2.],
            [5.]]])
    """
    single = isinstance(percentiles, Real)
    wanted: Any = [percentiles] if single else percentiles
    if not all(0 <= each <= 100 for each in wanted):
        raise ValueError(f"A percentile is a number from 0 to 100, but got {shorten(percentiles)}.")
    found = implementation(tensor).percentile(tensor, wanted, axes_of(axis), keepdims)
    chosen: T = found[0] if single else found
    return chosen


def axes_of(axis: int | Sequence[int] | None) -> Sequence[int] | None:
    """List axes, of which there may be one.

    Args:
        axis: An axis, or several, or None for all.

    Returns:
        The axes, or None for all.

    >>> axes_of(-1), axes_of([0, 1])
    ([-1], [0, 1])
    """
    return [axis] if isinstance(axis, int) else axis
