"""Elementwise functions, matrix products and normalization."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from typing import Any, TypeVar

from fastnet.backend.dispatch import backend_of, get_backend
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


def abs(tensor: T) -> T:
    """Return the absolute value of each element.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> abs(np.array([-2.0, 0.0, 3.0]))
    array([2., 0., 3.])
    """
    return backend_of(tensor).abs(tensor)


def argmax(tensor: T, axis: int = 0) -> T:
    """Return the indices of the maximum along an axis, as int64.

    Args:
        tensor: A tensor of any shape. The first of several equal values counts.
        axis: The axis to reduce; negative values count from the end.

    >>> import numpy as np
    >>> argmax(np.array([[0.1, 0.9], [0.8, 0.2]]), axis=1)
    array([1, 0])
    """
    return backend_of(tensor).argmax(tensor, axis)


def check_nan(val: Any) -> Any:
    """Return whether any element is NaN or infinite.

    Args:
        val: A tensor of any shape, or a Python number.

    Returns:
        A boolean scalar of the tensor's framework, or of numpy for a Python number.

    >>> bool(check_nan(float("inf"))), bool(check_nan(1))
    (True, False)
    """
    package = get_backend("np") if isinstance(val, (int, float)) else backend_of(val)
    return package.check_nan(val)


def clip_by_value(
    tensor: T, min_value: float | T | None = None, max_value: float | T | None = None
) -> T:
    """Return a tensor with its elements clipped to an interval.

    Args:
        tensor: A tensor of any shape.
        min_value: The lower bound, a number or a tensor, or None for no lower bound.
        max_value: The upper bound, likewise. In torch no gradients flow to the bounds.

    Raises:
        AssertionError: If both bounds are None.

    >>> import numpy as np
    >>> clip_by_value(np.array([-1.0, 0.5, 2.0]), min_value=0, max_value=1)
    array([0. , 0.5, 1. ])
    """
    if min_value is None and max_value is None:
        raise AssertionError("clip_by_value needs a min_value, a max_value, or both.")
    return backend_of(tensor).clip_by_value(tensor, min_value, max_value)


def exp(tensor: T) -> T:
    """Return e to the power of each element.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> exp(np.array([0.0, 1.0])).round(3)
    array([1. , 2.718])
    """
    return backend_of(tensor).exp(tensor)


def iwd(
    tensor: Tensor,
    power: float = 1.0,
    max_prob: float = 0.95,
    pairwise_distance: float = 1.0,
    eps: Tensor | None = None,
) -> Tensor:
    """Convert distances to class probabilities by inverse distance weighting.

    Args:
        tensor: The distance of each sample to each class, shape (batch, classes).
        power: The exponent of the inverse distances.
        max_prob: The probability of a class at distance 0, where the others are at
            `pairwise_distance`.
        pairwise_distance: The distance between two classes.
        eps: The lower bound of the distances. None for the one that gives `max_prob`.

    Returns:
        Probabilities that sum to 1 for each sample, of the same shape.

    >>> import numpy as np
    >>> iwd(np.array([[0.5, 0.5], [1.0, 3.0]]))
    array([[0.5 , 0.5 ],
           [0.75, 0.25]])
    """
    functions = backend_of(tensor)
    if eps is None:
        n_others = max(tensor.shape[-1] - 1, 1)
        ratio = (1.0 - max_prob) / (max_prob * n_others)
        min_distance = pairwise_distance * math.pow(ratio, 1 / power)
        distances = functions.clip_by_value(tensor, min_distance, None)
    else:
        distances = functions.maximum(tensor, functions.cast_like(eps, tensor))
    weights = functions.reciprocal(distances)
    if power != 1.0:
        weights = functions.pow(weights, power)
    return functions.divide(weights, functions.reduce_sum(weights, (-1,), True))


def lambertw(tensor: T) -> T:
    """Return the principal branch of the Lambert W function of each element.

    Args:
        tensor: A floating point tensor z of any shape.

    Returns:
        The w >= -1 with w * exp(w) = z, of the same shape; NaN where z < -1/e.

    >>> import numpy as np
    >>> lambertw(np.array([0.0, np.e, 2 * np.e**2]))
    array([0., 1., 2.])
    """
    return backend_of(tensor).lambertw(tensor)


def matmul(a: T, b: T) -> T:
    """Return the product of two matrices, or of two batches of matrices, shape (..., n, m).

    Args:
        a: A tensor of shape (..., n, k).
        b: A tensor of the same framework, shape (..., k, m).

    Raises:
        ValueError: If the tensors are of different frameworks.

    >>> import numpy as np
    >>> matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    return _common_backend(a, b).matmul(a, b)


def maximum(tensor1: T, tensor2: T) -> T:
    """Return the elementwise maximum of two tensors.

    Args:
        tensor1: A tensor.
        tensor2: A tensor of the same framework, of a shape that broadcasts with the first.

    Raises:
        ValueError: If the tensors are of different frameworks.

    >>> import numpy as np
    >>> maximum(np.array([1.0, 5.0]), np.array([2.0, 3.0]))
    array([2., 5.])
    """
    return _common_backend(tensor1, tensor2).maximum(tensor1, tensor2)


def pow(tensor: T, power: float | T) -> T:
    """Return the power of each element.

    Args:
        tensor: A tensor of any shape.
        power: The exponent, a number or a tensor.

    >>> import numpy as np
    >>> pow(np.array([1.0, 2.0, 3.0]), 2)
    array([1., 4., 9.])
    """
    return backend_of(tensor).pow(tensor, power)


tensor_pow = pow


def sign(tensor: T) -> T:
    """Return the sign of each element: -1, 0 or 1.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> sign(np.array([-2.0, 0.0, 3.0]))
    array([-1., 0., 1.])
    """
    return backend_of(tensor).sign(tensor)


def tensor_round(tensor: T) -> T:
    """Return the nearest integer to each element, in the same dtype; halves round to even.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> tensor_round(np.array([0.5, 1.25, 1.5]))
    array([0., 1., 2.])
    """
    return backend_of(tensor).tensor_round(tensor)


def tensor_sqrt(tensor: T) -> T:
    """Return the square root of each element.

    Args:
        tensor: A tensor of any shape.

    >>> import numpy as np
    >>> tensor_sqrt(np.array([4.0, 9.0]))
    array([2., 3.])
    """
    return backend_of(tensor).tensor_sqrt(tensor)


def zscore(data: T, epsilon: float = 1e-7) -> T:
    """Return a tensor standardized to mean 0 and standard deviation 1.

    Args:
        data: A tensor of any shape. Tensors of torch and TensorFlow are cast to float32.
        epsilon: The lower bound of the standard deviation.

    >>> import numpy as np
    >>> zscore(np.array([1.0, 3.0]))
    array([-1., 1.])
    """
    return backend_of(data).zscore(data, epsilon)


def _common_backend(tensor1: object, tensor2: object) -> Any:
    package = backend_of(tensor1)
    if backend_of(tensor2) is not package:
        raise ValueError(
            f"Tensor types do not match: {type(tensor1).__name__} and {type(tensor2).__name__}. "
            "Convert one of them with to_tensor."
        )
    return package
