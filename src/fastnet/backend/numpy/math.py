"""Functions of the elements of numpy arrays, and products."""

from __future__ import annotations

from operator import add, mul, truediv
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.numpy.lambertw import lambertw

__all__ = [
    "abs",
    "add",
    "argmax",
    "check_nan",
    "clip_by_value",
    "code_probabilities",
    "divide",
    "exp",
    "lambertw",
    "matmul",
    "maximum",
    "multiply",
    "pow",
    "sign",
    "tensor_round",
    "tensor_sqrt",
    "zscore",
]

Array: TypeAlias = NDArray[Any]

# operators by the names of functions, which some frameworks have that are faster
multiply, divide = mul, truediv


def abs(tensor: Array) -> Array:
    """Take absolute values."""
    return np.abs(tensor)


def argmax(tensor: Array, axis: int) -> Any:
    """Find where along an axis the largest value is, the first of several."""
    return np.argmax(tensor, axis=axis)


def check_nan(val: Any) -> Any:
    """Return whether any value is NaN or infinite."""
    return np.logical_not(np.isfinite(val).all())


def clip_by_value(
    tensor: Array, min_value: float | Array | None, max_value: float | Array | None
) -> Array:
    """Move values that lie outside an interval to its ends."""
    clipped: Array = np.clip(tensor, min_value, max_value)
    return clipped


def code_probabilities(tensor: Array, codes: Array, least: Array) -> Array:
    """Find how likely each of some codes is, the nearer the likelier."""
    distances = np.abs(tensor[:, None] - codes).sum(axis=-1)
    closeness = 1.0 / np.maximum(distances, least.astype(distances.dtype))
    probabilities: Array = closeness / closeness.sum(axis=-1, keepdims=True)
    return probabilities


def exp(tensor: Array) -> Any:
    """Raise e to each element."""
    return np.exp(tensor)


def matmul(a: Array, b: Array) -> Any:
    """Multiply matrices, or stacks of them."""
    return np.matmul(a, b)


def maximum(tensor1: Array, tensor2: Array) -> Any:
    """Take the larger of each two elements."""
    return np.maximum(tensor1, tensor2)


def pow(tensor: Array, power: float | Array) -> Any:
    """Raise each element to a power."""
    return np.power(tensor, power)


def sign(tensor: Array) -> Any:
    """Return the sign of each element: -1, 0 or 1."""
    return np.sign(tensor)


def tensor_round(tensor: Array) -> Any:
    """Round each element, halves to the even number."""
    return np.round(tensor)


def tensor_sqrt(tensor: Array) -> Any:
    """Take square roots."""
    return np.sqrt(tensor)


def zscore(data: Array, epsilon: float) -> Any:
    """Shift and scale an array to mean 0 and standard deviation 1."""
    deviation = np.std(data)
    return (data - np.mean(data)) / (deviation if deviation > epsilon else epsilon)
