"""Shape manipulation, indexing and creation of tensors."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fastnet.backend.dispatch import backend_of

__all__ = [
    "concat",
    "expand_dims",
    "flip",
    "gather",
    "gather_from_batch",
    "get_shape",
    "ones_like",
    "permute",
    "random_normal_like",
    "random_uniform_like",
    "reshape",
    "roll",
    "squeeze",
    "transpose",
    "where",
    "zeros_like",
]

T = TypeVar("T")


def concat(tensors: Sequence[T], axis: int = 0) -> T | None:
    """Return the tensors concatenated along an existing axis, or None if there are none.

    Args:
        tensors: Tensors of one framework, of equal shapes except along `axis`.
        axis: The axis.

    >>> import numpy as np
    >>> concat([np.array([[0, 1]]), np.array([[2, 3]])], axis=1)
    array([[0, 1, 2, 3]])
    """
    return backend_of(tensors[0]).concat(tensors, axis) if len(tensors) > 0 else None


def expand_dims(tensor: T, axis: int = 1) -> T:
    """Return a tensor with an additional axis of length 1.

    Args:
        tensor: A tensor with n axes.
        axis: The index of the new axis, from -n-1 to n.

    >>> import numpy as np
    >>> expand_dims(np.ones((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    return backend_of(tensor).expand_dims(tensor, axis)


def squeeze(tensor: T, axis: int | None = None) -> T:
    """Return a tensor without axes of length 1.

    Args:
        tensor: A tensor of any shape.
        axis: The axis to remove, None for all. If its length is not 1, torch returns the tensor and
            the other frameworks raise an error.

    >>> import numpy as np
    >>> squeeze(np.ones((2, 1, 3, 1)), axis=1).shape, squeeze(np.ones((2, 1, 3, 1))).shape
    ((2, 3, 1), (2, 3))
    """
    return backend_of(tensor).squeeze(tensor, axis)


def get_shape(tensor: Any) -> tuple[int, ...]:
    """Return the length of each axis; in a TensorFlow graph a tensor for each unknown length.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> get_shape(np.ones((2, 3)))
    (2, 3)
    """
    return backend_of(tensor).get_shape(tensor)


def zeros_like(tensor: T, dtype: Any = None) -> T:
    """Return zeros of the shape, and on the device, of a tensor.

    Args:
        tensor: A tensor of any shape.
        dtype: The dtype, by name or of the framework. None for that of `tensor`.

    >>> import numpy as np
    >>> zeros_like(np.ones(2, dtype="int64"), dtype="float32")
    array([0., 0.], dtype=float32)
    """
    return backend_of(tensor).zeros_like(tensor, dtype)


def ones_like(tensor: T, dtype: Any = None) -> T:
    """Return ones of the shape, and on the device, of a tensor; see `zeros_like`.

    >>> import numpy as np
    >>> ones_like(np.zeros(2, dtype="int64"), dtype="float32")
    array([1., 1.], dtype=float32)
    """
    return backend_of(tensor).ones_like(tensor, dtype)


def random_normal_like(
    tensor: T, mean: float = 0.0, std: float = 1.0, dtype: str | None = "float32"
) -> T:
    """Return a sample of a normal distribution, of the shape and device of a tensor.

    Args:
        tensor: A tensor of any shape. The framework's global generator is used.
        mean: The mean.
        std: The standard deviation.
        dtype: The dtype, by name. None for that of `tensor`.

    Raises:
        ValueError: If there is no such dtype.

    >>> import numpy as np
    >>> random_normal_like(np.zeros((2, 3))).shape
    (2, 3)
    """
    return backend_of(tensor).random_normal_like(tensor, mean, std, dtype)


def random_uniform_like(
    tensor: T, minval: float = 0.0, maxval: float = 1.0, dtype: str | None = "float32"
) -> T:
    """Return a sample of a uniform distribution, of the shape and device of a tensor.

    Args:
        tensor: A tensor of any shape. The framework's global generator is used.
        minval: The lower bound, inclusive.
        maxval: The upper bound, exclusive.
        dtype: The dtype; see `random_normal_like`.

    >>> import numpy as np
    >>> random_uniform_like(np.zeros((2, 3)), minval=2.0, maxval=3.0).shape
    (2, 3)
    """
    return backend_of(tensor).random_uniform_like(tensor, minval, maxval, dtype)


def reshape(tensor: T, shape: int | Sequence[int]) -> T:
    """Return a tensor with the same elements in another shape.

    Args:
        tensor: A tensor of any shape.
        shape: The new shape, with as many elements. One length may be -1, which is inferred.

    >>> import numpy as np
    >>> reshape(np.ones((2, 3, 4)), [-1, 12]).shape
    (2, 12)
    """
    lengths = shape if hasattr(shape, "__len__") else [shape]
    return backend_of(tensor).reshape(tensor, lengths)


def permute(tensor: T, permutation: Sequence[int]) -> T:
    """Return a tensor with its axes in another order.

    Args:
        tensor: A tensor with n axes.
        permutation: The axis of the tensor that becomes each axis of the result.

    >>> import numpy as np
    >>> permute(np.ones((2, 3, 4)), [2, 0, 1]).shape
    (4, 2, 3)
    """
    return backend_of(tensor).permute(tensor, permutation)


def transpose(tensor: T) -> T:
    """Return a tensor with its axes in reverse order.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> transpose(np.ones((2, 3, 4))).shape
    (4, 3, 2)
    """
    return backend_of(tensor).transpose(tensor)


def flip(tensor: T, axis: int | Sequence[int]) -> T:
    """Return a tensor with its elements in reverse order along axes.

    Args:
        tensor: A tensor of any shape.
        axis: The axis or axes; negative values count from the end.

    >>> import numpy as np
    >>> flip(np.array([[1, 2], [3, 4]]), axis=[1])
    array([[2, 1],
           [4, 3]])
    """
    axes = axis if hasattr(axis, "__len__") else [axis]
    return backend_of(tensor).flip(tensor, axes)


def roll(tensor: T, shift: int | Sequence[int], axis: int | Sequence[int]) -> T:
    """Return a tensor rolled along axes: elements shifted past the end reappear at the start.

    Args:
        tensor: A tensor of any shape.
        shift: The number of places to shift by, one for each axis.
        axis: The axis or axes; negative values count from the end.

    >>> import numpy as np
    >>> roll(np.array([1, 2, 3]), shift=1, axis=0)
    array([3, 1, 2])
    """
    return backend_of(tensor).roll(tensor, shift, axis)


def gather(tensor: T, indices: Any) -> T:
    """Return entries along the first axis of a tensor.

    Args:
        tensor: A tensor of shape (n, ...).
        indices: A tensor of integers, whose axes of length 1 are removed first. (A TensorFlow graph
            keeps axes of unknown length.)

    Returns:
        The entries, of the squeezed shape of `indices` followed by (...).

    >>> import numpy as np
    >>> gather(np.array([[1, 2], [3, 4], [5, 6]]), np.array([2, 0]))
    array([[5, 6],
           [1, 2]])
    """
    return backend_of(tensor).gather(tensor, indices)


def gather_from_batch(tensor: T, indices: Any) -> T:
    """Return one entry of each sample of a batch, shape (batch, ...).

    Args:
        tensor: A tensor of shape (batch, n, ...).
        indices: The index of the entry of each sample, integers of shape (batch,) or (batch, 1).

    >>> import numpy as np
    >>> gather_from_batch(np.array([[1, 2], [3, 4], [5, 6]]), np.array([1, 0, 1]))
    array([2, 3, 6])
    """
    return backend_of(tensor).gather_from_batch(tensor, indices)


def where(condition: T, yes: Any, no: Any) -> T:
    """Select elements from one of two tensors, depending on a condition.

    Args:
        condition: A boolean tensor.
        yes: The values where the condition is true, a tensor or a number.
        no: The values where it is false, likewise.

    Returns:
        A tensor of the broadcast shape. A number takes the dtype of the other value, except that
        torch and numpy promote integers by a float.

    >>> import numpy as np
    >>> where(np.array([True, False]), np.array([1.0, 2.0]), 0)
    array([1., 0.])
    """
    return backend_of(condition).where(condition, yes, no)
