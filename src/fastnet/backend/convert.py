"""Conversions of whole batches: to tensors, to shapes, to types."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastnet._nest import map_leaves
from fastnet.frameworks import FRAMEWORKS, part_of
from fastnet.util.tensors import to_number

__all__ = ["to_shape", "to_tensor", "to_type"]


def to_tensor(data: Any, target_type: str, shared_memory: bool = False) -> Any:
    """Convert the tensors, arrays and numbers of a nest to the tensors of one framework.

    Args:
        data: A value, or values in dicts, lists, tuples, namedtuples, sets and dataclasses, to any
            depth. It is not changed.
        target_type: "torch" or "tf" for tensors of PyTorch or TensorFlow, "np" for numpy arrays.
        shared_memory: Whether to put torch tensors where other processes can read them. Tensors
            that `data` already holds are moved there themselves.

    Returns:
        The same structure, with new containers. What is of the framework already is used as it is;
        anything else is copied. Strings and None stay, and so do arrays of strings for "torch",
        which has no tensors of them. For "np" a bfloat16 tensor becomes float32.

    Raises:
        ValueError: If `target_type` is none of these.
        TypeError: If a value cannot be made into a tensor.

    >>> to_tensor({"x": [1.5, None], "name": "a"}, target_type="np")
    {'x': [array(1.5), None], 'name': 'a'}
    """
    if target_type not in FRAMEWORKS:
        raise ValueError(
            f"target_type must be one of {', '.join(map(repr, FRAMEWORKS))}, but got "
            f"{target_type!r}."
        )
    convert = part_of(target_type, "convert", "to_tensor")
    if target_type == "torch":  # no other framework has memory that processes share
        convert = partial(convert, shared_memory=shared_memory)
    return map_leaves(data, convert)


def copy_to_arrays(data: Any) -> Any:
    """Copy the tensors, arrays and numbers of a nest into numpy arrays.

    Args:
        data: A value, or values in containers, to any depth. It is not changed.

    Returns:
        The same structure, which shares no memory with `data`. Strings and None stay.

    >>> copy_to_arrays([1.5, "a"])
    [array(1.5), 'a']
    """
    return map_leaves(data, lambda value: value if _stays(value) else to_number(value))


def to_shape(data: Any, add_batch: bool = False, exact_shape: bool = True) -> Any:
    """Replace the tensors of a nest by their shapes.

    Args:
        data: A tensor, or tensors in containers, to any depth.
        add_batch: Whether to put a None for the batch in front of each shape.
        exact_shape: Whether to tell the length of each axis; otherwise None stands for each.

    Returns:
        The same structure of shapes. What is no tensor has the shape that numpy gives it.

    >>> import numpy as np
    >>> to_shape({"x": np.ones((2, 3)), "y": [np.ones(4), 7]})
    {'x': (2, 3), 'y': [(4,), ()]}
    >>> to_shape(np.ones((2, 3)), add_batch=True, exact_shape=False)
    [None, None, None]
    """

    def shape_of(value: Any) -> Any:
        shape = value.shape if hasattr(value, "shape") else _array(value).shape
        if not exact_shape:
            shape = [None] * len(shape)
        return [None, *shape] if add_batch else shape

    return map_leaves(data, shape_of)


def to_type(data: Any) -> Any:
    """Replace the tensors of a nest by their types.

    Args:
        data: A tensor, or tensors in containers, to any depth.

    Returns:
        The same structure of types, each as its framework tells it. What is no tensor has the type
        that numpy gives it.

    >>> import numpy as np
    >>> to_type({"x": np.ones(2, dtype="float32"), "y": [7]})
    {'x': dtype('float32'), 'y': [dtype('int64')]}
    """

    def type_of(value: Any) -> Any:
        return value.dtype if hasattr(value, "dtype") else _array(value).dtype

    return map_leaves(data, type_of)


def _stays(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes))


def _array(value: Any) -> Any:
    import numpy as np

    return np.array(value)
