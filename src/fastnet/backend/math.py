"""Functions of the elements of tensors of any framework, and products."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import math
from typing import Any, TypeVar

from fastnet.backend.dispatch import dispatched, implementation
from fastnet.frameworks import part_of
from fastnet.types import Tensor

__all__ = [
    "abs",
    "argmax",
    "check_nan",
    "clip_by_value",
    "exp",
    "iwd",
    "lambertw",
    "matmul",
    "maximum",
    "pow",
    "sign",
    "tensor_pow",
    "tensor_round",
    "tensor_sqrt",
    "zscore",
]

T = TypeVar("T")


@dispatched
def abs(tensor: T) -> T:
    """Take the absolute value of each element of a tensor.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The absolute values.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> abs(np.array([-2.0, 0.0, 3.0]))
    array([2., 0., 3.])
    """


@dispatched
def argmax(tensor: T, axis: int = 0) -> T:
    """Find where along an axis the largest values are.

    Args:
        tensor: A tensor of any shape.
        axis: The axis, which may be counted from the end.

    Returns:
        The places, int64, of the shape without the axis. Of several equal values the first counts.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> argmax(np.array([[0.1, 0.9], [0.8, 0.2]]), axis=1)
    array([1, 0])
    """


def check_nan(val: Any) -> Any:
    """Return whether any value is NaN or infinite.

    Args:
        val: A tensor of any shape, or a number.

    Returns:
        Yes or no: a boolean scalar of the tensor's framework, of numpy for a number.

    Raises:
        ValueError: If the value is no number, and of no framework that fastnet knows.

    >>> bool(check_nan(float("inf"))), bool(check_nan(1))
    (True, False)
    """
    if isinstance(val, (int, float)):
        return part_of("np").check_nan(val)
    return implementation(val).check_nan(val)


def clip_by_value(
    tensor: T, min_value: float | T | None = None, max_value: float | T | None = None
) -> T:
    """Move values that lie outside an interval to its ends.

    Args:
        tensor: A tensor of any shape.
        min_value: The least value, a number or a tensor. None for no such end.
        max_value: The largest value, likewise. In torch no gradients go through these two.

    Returns:
        A tensor of the same shape.

    Raises:
        AssertionError: If both ends are None.
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> clip_by_value(np.array([-1.0, 0.5, 2.0]), min_value=0, max_value=1)
    array([0. , 0.5, 1. ])
    """
    if min_value is None and max_value is None:
        raise AssertionError(
            "clip_by_value has nothing to do: give it a min_value, a max_value, or both."
        )
    result: T = implementation(tensor).clip_by_value(tensor, min_value, max_value)
    return result


@dispatched
def exp(tensor: T) -> T:
    """Raise e to each element of a tensor.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The powers.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> exp(np.array([0.0, 1.0])).round(3)
    array([1. , 2.718])
    """


def iwd(
    tensor: Tensor,
    power: float = 1.0,
    max_prob: float = 0.95,
    pairwise_distance: float = 1.0,
    eps: Tensor | None = None,
) -> Tensor:
    """Turn distances into probabilities: the nearer the likelier.

    Args:
        tensor: The distance of each sample from each class, shape (batch, classes).
        power: How much more a nearer class counts.
        max_prob: The probability of a class that is met exactly, where the others are
            `pairwise_distance` away.
        pairwise_distance: How far classes are from each other.
        eps: The least distance there is. None for the one that gives `max_prob`.

    Returns:
        Probabilities that add up to 1 for each sample, of the same shape.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> iwd(np.array([[0.5, 0.5], [1.0, 3.0]]))
    array([[0.5 , 0.5 ],
           [0.75, 0.25]])
    """
    functions = implementation(tensor)
    if eps is None:
        others = max(tensor.shape[-1] - 1, 1)
        least = pairwise_distance * math.pow((1.0 - max_prob) / (max_prob * others), 1 / power)
        near = functions.clip_by_value(tensor, least, None)
    else:
        near = functions.maximum(tensor, functions.cast_like(eps, tensor))
    closeness = 1.0 / near
    if power != 1.0:
        closeness = functions.pow(closeness, power)
    return closeness / functions.reduce_sum(closeness, [-1], True)


@dispatched
def lambertw(tensor: T) -> T:
    """Solve w * exp(w) = z for w, on the upper real branch.

    Args:
        tensor: The z, of any shape, floating point.

    Returns:
        The w, of the same shape, -1 or more. NaN where z is below -1/e, and so has none.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> lambertw(np.array([0.0, np.e, 2 * np.e**2]))
    array([0., 1., 2.])
    """


def matmul(a: T, b: T) -> T:
    """Multiply matrices.

    Args:
        a: A matrix, or a stack of them, shape (..., n, k).
        b: Likewise, shape (..., k, m).

    Returns:
        The products, shape (..., n, m).

    Raises:
        ValueError: If the tensors are of two frameworks, or of none that fastnet knows.

    >>> import numpy as np
    >>> matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    result: T = _common(a, b).matmul(a, b)
    return result


def maximum(tensor1: T, tensor2: T) -> T:
    """Take the larger of each two elements.

    Args:
        tensor1: A tensor.
        tensor2: A tensor of the same framework, of a shape that goes with that of the other.

    Returns:
        The larger elements.

    Raises:
        ValueError: If the tensors are of two frameworks, or of none that fastnet knows.

    >>> import numpy as np
    >>> maximum(np.array([1.0, 5.0]), np.array([2.0, 3.0]))
    array([2., 5.])
    """
    result: T = _common(tensor1, tensor2).maximum(tensor1, tensor2)
    return result


@dispatched
def pow(tensor: T, power: float | T) -> T:
    """Raise each element of a tensor to a power.

    Args:
        tensor: A tensor of any shape.
        power: The power, a number or a tensor.

    Returns:
        The powers.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> pow(np.array([1.0, 2.0, 3.0]), 2)
    array([1., 4., 9.])
    """


def tensor_pow(tensor: T, power: float) -> T:
    """Raise each element of a tensor to a power; another name of `pow`.

    Args:
        tensor: A tensor of any shape.
        power: The power.

    Returns:
        The powers.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> tensor_pow(np.array([4.0, 9.0]), 0.5)
    array([2., 3.])
    """
    return pow(tensor, power)


@dispatched
def sign(tensor: T) -> T:
    """Return the sign of each element of a tensor.

    Args:
        tensor: A tensor of any shape.

    Returns:
        -1, 0 or 1 for each.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> sign(np.array([-2.0, 0.0, 3.0]))
    array([-1., 0., 1.])
    """


@dispatched
def tensor_round(tensor: T) -> T:
    """Round each element of a tensor to a whole number.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The nearest whole numbers, of the same type; halves go to the even one.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> tensor_round(np.array([0.5, 1.25, 1.5]))
    array([0., 1., 2.])
    """


@dispatched
def tensor_sqrt(tensor: T) -> T:
    """Take the square root of each element of a tensor.

    Args:
        tensor: A tensor of any shape.

    Returns:
        The roots.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> tensor_sqrt(np.array([4.0, 9.0]))
    array([2., 3.])
    """


@dispatched
def zscore(data: T, epsilon: float = 1e-7) -> T:
    """Shift and scale a tensor to mean 0 and standard deviation 1.

    Args:
        data: A tensor of any shape.
        epsilon: The least standard deviation to divide by.

    Returns:
        A tensor of the same shape; of torch and TensorFlow in float32.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> zscore(np.array([1.0, 3.0]))
    array([-1., 1.])
    """


def _common(one: object, other: object) -> Any:
    """Find the functions for two tensors, which must be of one framework."""
    functions = implementation(one)
    if implementation(other) is not functions:
        raise ValueError(
            f"Tensor types do not match: {type(one).__name__} and {type(other).__name__}. Convert "
            "one of them with to_tensor."
        )
    return functions
