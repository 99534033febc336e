"""Conversion of tensors, and of nests of tensors, to frameworks, shapes and dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastnet._nest import map_leaves
from fastnet.backend.dispatch import backend_of, get_backend
from fastnet.backend.precision import compute_precision

__all__ = ["cast", "convert_tensor_precision", "to_shape", "to_tensor", "to_type"]


def to_tensor(data: Any, target_type: str, shared_memory: bool = False) -> Any:
    """Convert the tensors, arrays and numbers of a nest to tensors of one framework.

    Args:
        data: A value, or values in dicts, lists, tuples, namedtuples, sets and dataclasses, nested
            to any depth. It is not changed.
        target_type: "torch" or "tf" for tensors of PyTorch or TensorFlow, "np" for numpy arrays.
        shared_memory: Whether to put torch tensors into shared memory. Torch tensors in `data` are
            moved there in place.

    Returns:
        The same structure, with new containers. Values of the framework are not copied. Strings and
        None stay, and so do arrays of strings for "torch", which has no tensors of strings. For
        "np" a bfloat16 tensor becomes float32.

    Raises:
        ValueError: If there is no such `target_type`.
        TypeError: If a value cannot be converted.

    >>> to_tensor({"x": [1.5, None], "name": "a"}, target_type="np")
    {'x': [array(1.5), None], 'name': 'a'}
    """
    convert = get_backend(target_type).convert
    if target_type == "torch":
        convert = partial(convert, shared_memory=shared_memory)
    return map_leaves(data, convert)


def to_shape(data: Any, add_batch: bool = False, exact_shape: bool = True) -> Any:
    """Replace the tensors of a nest by their shapes.

    Args:
        data: A tensor, or tensors in containers, nested to any depth.
        add_batch: Whether to prepend None for the batch to each shape.
        exact_shape: Whether to return the length of each axis, rather than None.

    Returns:
        The same structure of shapes. Other values have the shape that numpy gives them.

    >>> import numpy as np
    >>> to_shape({"x": np.ones((2, 3)), "y": [np.ones(4), 7]})
    {'x': (2, 3), 'y': [(4,), ()]}
    >>> to_shape(np.ones((2, 3)), add_batch=True, exact_shape=False)
    [None, None, None]
    """

    def shape_of(value: Any) -> Any:
        shape = _as_array(value, "shape").shape
        if not exact_shape:
            shape = [None] * len(shape)
        return [None, *shape] if add_batch else shape

    return map_leaves(data, shape_of)


def to_type(data: Any) -> Any:
    """Replace the tensors of a nest by their dtypes.

    Args:
        data: A tensor, or tensors in containers, nested to any depth.

    Returns:
        The same structure of dtypes. Other values have the dtype that numpy gives them.

    >>> import numpy as np
    >>> to_type({"x": np.ones(2, dtype="float32"), "y": [7]})
    {'x': dtype('float32'), 'y': [dtype('int64')]}
    """
    return map_leaves(data, lambda value: _as_array(value, "dtype").dtype)


def cast(data: Any, dtype: Any) -> Any:
    """Cast tensors to another dtype.

    Args:
        data: A tensor, or tensors in dicts, lists, tuples, namedtuples, sets and dataclasses,
            nested to any depth.
        dtype: A name, such as "float32", a dtype of the framework, or a tensor whose dtype,
            framework and device the result is to have.

    Returns:
        The same structure. Other values become numpy arrays, except None. With a tensor as `dtype`,
        a list or tuple of numbers becomes one tensor.

    Raises:
        ValueError: If there is no such dtype.

    >>> import numpy as np
    >>> cast({"x": np.array([1.5, 0.0])}, "bool"), cast([1, 2], np.array(0.5))
    ({'x': array([ True, False])}, array([1., 2.]))
    """
    # The scalar types of numpy are classes that have a `dtype`, too.
    if hasattr(dtype, "dtype") and not isinstance(dtype, type):
        cast_like = backend_of(dtype).cast_like
        if hasattr(data, "dtype") or isinstance(data, (list, tuple)):
            return cast_like(data, dtype)
        return map_leaves(data, lambda value: cast_like(value, dtype))
    return map_leaves(data, lambda value: _cast_leaf(value, dtype))


def convert_tensor_precision(tensor: Any) -> Any:
    """Cast tensors to the compute dtype of Keras's precision policy.

    Args:
        tensor: A tensor, or tensors in containers, nested to any depth.

    Returns:
        The same structure in float16 if Keras's policy computes in it, else in float32.

    >>> import numpy as np
    >>> convert_tensor_precision(np.array([1, 2]))
    array([1., 2.], dtype=float32)
    """
    return cast(tensor, compute_precision())


def _cast_leaf(value: Any, dtype: Any) -> Any:
    if value is None:
        return None
    package = backend_of(value) if hasattr(value, "dtype") else get_backend("np")
    return package.cast(value, dtype)


def _as_array(value: Any, attribute: str) -> Any:
    import numpy as np

    return value if hasattr(value, attribute) else np.array(value)
