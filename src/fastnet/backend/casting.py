"""Tensors of any framework, and nests of them, in another type."""

from __future__ import annotations

from typing import Any

from fastnet._nest import map_leaves
from fastnet.backend.dispatch import implementation
from fastnet.backend.precision import compute_precision
from fastnet.frameworks import part_of

__all__ = ["cast", "convert_tensor_precision"]


def cast(data: Any, dtype: Any) -> Any:
    """Convert tensors to another type.

    Args:
        data: A tensor, or tensors in dicts, lists, tuples, namedtuples, sets and dataclasses, to
            any depth.
        dtype: The type, by its name, such as "float32", or as the framework's own object; or a
            tensor, whose type, framework and device the result is to have.

    Returns:
        The same structure, with each tensor in the new type. What is no tensor becomes an array of
        numpy, but None stays. With a tensor as `dtype`, a list or tuple of numbers becomes one
        tensor.

    Raises:
        ValueError: If there is no such type.

    >>> import numpy as np
    >>> cast({"x": np.array([1.5, 0.0])}, "bool"), cast([1, 2], np.array(0.5))
    ({'x': array([ True, False])}, array([1., 2.]))
    """
    if _is_tensor(dtype):
        like = implementation(dtype).cast_like
        if hasattr(data, "dtype") or isinstance(data, (list, tuple)):
            return like(data, dtype)
        return map_leaves(data, lambda value: like(value, dtype))
    if hasattr(data, "dtype"):
        return implementation(data).cast(data, dtype)
    return map_leaves(data, lambda value: _cast_leaf(value, dtype))


def convert_tensor_precision(tensor: Any) -> Any:
    """Convert tensors to the type that models compute in.

    Args:
        tensor: A tensor, or tensors in containers, to any depth.

    Returns:
        The same structure in float32, or in float16 where Keras's precision policy is so.

    >>> import numpy as np
    >>> convert_tensor_precision(np.array([1, 2]))
    array([1., 2.], dtype=float32)
    """
    return cast(tensor, compute_precision())


def _is_tensor(dtype: Any) -> bool:
    # numpy's scalar types are classes that have a `dtype`, too
    return hasattr(dtype, "dtype") and not isinstance(dtype, type)


def _cast_leaf(value: Any, dtype: Any) -> Any:
    if value is None:
        return None
    if hasattr(value, "dtype"):
        return implementation(value).cast(value, dtype)
    return part_of("np").cast(value, dtype)
