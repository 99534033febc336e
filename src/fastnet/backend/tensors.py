"""Functions over the tensors of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fastnet.backend.dispatch import implementation

__all__ = ["concat", "expand_dims", "get_shape", "reduce_mean", "squeeze", "zeros_like"]

T = TypeVar("T")


def concat(tensors: Sequence[T], axis: int = 0) -> T | None:
    """Join tensors along an axis that they have.

    Args:
        tensors: Tensors of one framework, of equal shapes but for `axis`.
        axis: The axis.

    Returns:
        One tensor, as long along `axis` as all of them together. None if there are no tensors.

    Raises:
        ValueError: If the tensors are of no framework that fastnet knows.

    >>> import numpy as np
    >>> concat([np.array([[0, 1]]), np.array([[2, 3]])], axis=1)
    array([[0, 1, 2, 3]])
    """
    if len(tensors) == 0:
        return None
    joined: T = implementation(tensors[0]).concat(tensors, axis)
    return joined


def expand_dims(tensor: T, axis: int = 1) -> T:
    """Give a tensor a new axis of length 1.

    Args:
        tensor: A tensor of n axes.
        axis: Where the new axis is to be, from -n-1 to n.

    Returns:
        The tensor, with n + 1 axes.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> expand_dims(np.ones((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    expanded: T = implementation(tensor).expand_dims(tensor, axis)
    return expanded


def squeeze(tensor: T, axis: int | None = None) -> T:
    """Take an axis of length 1 out of a tensor.

    Args:
        tensor: A tensor of any shape.
        axis: The axis. None for all that have length 1.

    Returns:
        The tensor, without the axis. If the axis has another length, torch leaves it, and numpy
        raises a ValueError.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> squeeze(np.ones((2, 1, 3, 1)), axis=1).shape, squeeze(np.ones((2, 1, 3, 1))).shape
    ((2, 3, 1), (2, 3))
    """
    squeezed: T = implementation(tensor).squeeze(tensor, axis)
    return squeezed


def get_shape(tensor: Any) -> tuple[int, ...]:
    """Read the shape of a tensor.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The length of each axis.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> get_shape(np.ones((2, 3)))
    (2, 3)
    """
    shape: tuple[int, ...] = implementation(tensor).get_shape(tensor)
    return shape


def zeros_like(tensor: T, dtype: Any = None) -> T:
    """Make zeros of the shape of a tensor.

    Args:
        tensor: A tensor of any shape.
        dtype: The type of the zeros, by its name, such as "float32". None for the tensor's own.

    Returns:
        A tensor of the same framework, shape and device.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> zeros_like(np.ones(2, dtype="int64"), dtype="float32")
    array([0., 0.], dtype=float32)
    """
    made: T = implementation(tensor).zeros_like(tensor, dtype)
    return made


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
    axes = [axis] if isinstance(axis, int) else axis
    mean: T = implementation(tensor).reduce_mean(tensor, axes, keepdims)
    return mean
