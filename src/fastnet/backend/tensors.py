"""Shapes and arrangements of the tensors of any framework."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fastnet.backend.dispatch import dispatched, implementation

__all__ = [
    "concat",
    "expand_dims",
    "flip",
    "gather",
    "gather_from_batch",
    "get_image_dims",
    "get_shape",
    "ones_like",
    "permute",
    "reshape",
    "roll",
    "squeeze",
    "transpose",
    "where",
    "zeros_like",
]

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


@dispatched
def expand_dims(tensor: T, axis: int = 1) -> T:
    """Insert an axis of length 1 into a tensor.

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


@dispatched
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


@dispatched
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


@dispatched
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


@dispatched
def ones_like(tensor: T, dtype: Any = None) -> T:
    """Make ones of the shape of a tensor.

    Args:
        tensor: A tensor of any shape.
        dtype: The type of the ones, by its name, such as "float32". None for the tensor's own.

    Returns:
        A tensor of the same framework, shape and device.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> ones_like(np.zeros(2, dtype="int64"), dtype="float32")
    array([1., 1.], dtype=float32)
    """


def reshape(tensor: T, shape: int | Sequence[int]) -> T:
    """Reshape a tensor.

    Args:
        tensor: A tensor of any shape.
        shape: The shape, of as many elements. One length may be -1, for what is left.

    Returns:
        The same values in the new shape.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> reshape(np.ones((2, 3, 4)), [-1, 12]).shape
    (2, 12)
    """
    lengths = shape if hasattr(shape, "__len__") else [shape]
    shaped: T = implementation(tensor).reshape(tensor, lengths)
    return shaped


@dispatched
def permute(tensor: T, permutation: Sequence[int]) -> T:
    """Put the axes of a tensor into another order.

    Args:
        tensor: A tensor of n axes.
        permutation: For each axis of the result, which axis of the tensor it is.

    Returns:
        The tensor, with its axes in the new order.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> permute(np.ones((2, 3, 4)), [2, 0, 1]).shape
    (4, 2, 3)
    """


@dispatched
def transpose(tensor: T) -> T:
    """Turn the order of a tensor's axes round.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The tensor, its last axis first.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> transpose(np.ones((2, 3, 4))).shape
    (4, 3, 2)
    """


def flip(tensor: T, axis: int | Sequence[int]) -> T:
    """Turn axes of a tensor round, so that what was first is last.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes, which may be counted from the end.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> flip(np.array([[1, 2], [3, 4]]), axis=[1])
    array([[2, 1],
           [4, 3]])
    """
    axes = axis if hasattr(axis, "__len__") else [axis]
    flipped: T = implementation(tensor).flip(tensor, axes)
    return flipped


@dispatched
def roll(tensor: T, shift: int | Sequence[int], axis: int | Sequence[int]) -> T:
    """Shift the entries of a tensor along its axes; those that leave come in at the other end.

    Args:
        tensor: A tensor of any shape.
        shift: By how many places, one number for each axis.
        axis: The axis or axes, which may be counted from the end.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> roll(np.array([1, 2, 3]), shift=1, axis=0)
    array([3, 1, 2])
    """


@dispatched
def gather(tensor: T, indices: Any) -> T:
    """Take entries of a tensor's first axis.

    Args:
        tensor: A tensor, shape (n, ...).
        indices: Which entries, a tensor of integers. Its axes of length 1 do not count: a single
            index gives an entry, not a tensor with one entry. (A graph of TensorFlow keeps axes
            whose length it leaves open.)

    Returns:
        The entries, of the shape of `indices`, less such axes, and (...).

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> gather(np.array([[1, 2], [3, 4], [5, 6]]), np.array([2, 0]))
    array([[5, 6],
           [1, 2]])
    """


@dispatched
def gather_from_batch(tensor: T, indices: Any) -> T:
    """Take one entry from each sample of a batch.

    Args:
        tensor: A tensor, shape (batch, n, ...).
        indices: Which entry of each sample, a tensor of integers, shape (batch,) or (batch, 1).

    Returns:
        The entries, shape (batch, ...).

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> gather_from_batch(np.array([[1, 2], [3, 4], [5, 6]]), np.array([1, 0, 1]))
    array([2, 3, 6])
    """


@dispatched
def where(condition: T, yes: Any, no: Any) -> T:
    """Take each element from one of two tensors.

    Args:
        condition: A tensor of booleans.
        yes: What to take where it holds, a tensor or a number.
        no: What to take elsewhere, likewise.

    Returns:
        A tensor of the shape that the three have in common. A number gets the other one's type.

    Raises:
        ValueError: If the condition is of no framework that fastnet knows.

    >>> import numpy as np
    >>> where(np.array([True, False]), np.array([1.0, 2.0]), 0)
    array([1., 0.])
    """


def get_image_dims(tensor: Any) -> tuple[int, int, int]:
    """Read the size of an image.

    Args:
        tensor: An image or a batch of them, shape (..., channels, height, width) in torch, and
            (..., height, width, channels) elsewhere.

    Returns:
        Its channels, height and width. In a graph of TensorFlow a tensor stands for each that the
        graph leaves open.

    Raises:
        AssertionError: If the tensor has not three or four axes.
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> get_image_dims(np.ones((8, 28, 30, 3)))
    (3, 28, 30)
    """
    functions = implementation(tensor)
    if len(tensor.shape) not in (3, 4):
        raise AssertionError(
            f"An image has three axes, a batch of them four, but got the shape "
            f"{tuple(tensor.shape)}."
        )
    dims: tuple[int, int, int] = functions.get_image_dims(tensor)
    return dims
