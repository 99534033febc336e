"""Random numpy arrays, from numpy's global generator."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.numpy.tensors import dtype_of

__all__ = ["random_normal_like", "random_uniform_like"]

Array: TypeAlias = NDArray[Any]


def random_normal_like(
    tensor: Array, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> Array:
    """Draw from a normal distribution, in the shape of an array."""
    drawn = np.asarray(np.random.normal(loc=mean, scale=std, size=tensor.shape))
    return drawn.astype(tensor.dtype if dtype is None else dtype_of(dtype))


def random_uniform_like(
    tensor: Array, minval: float = 0.0, maxval: float = 1.0, dtype: Any = "float32"
) -> Array:
    """Draw evenly from an interval, in the shape of an array."""
    drawn = np.asarray(np.random.uniform(low=minval, high=maxval, size=tensor.shape))
    return drawn.astype(tensor.dtype if dtype is None else dtype_of(dtype))
