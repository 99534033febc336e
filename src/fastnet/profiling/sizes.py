"""How much memory the tensors of a value take."""

from __future__ import annotations

from typing import Any

from fastnet._nest import leaves_of

__all__ = ["bytes_of"]


def bytes_of(value: Any) -> int:
    """Add up the bytes of the tensors and arrays in a value.

    Args:
        value: A tensor, or tensors in containers, to any depth.

    Returns:
        The bytes; what is no tensor has none.

    >>> import numpy as np
    >>> bytes_of({"x": [np.zeros(3), np.zeros(2, "i1")], "name": "a"})
    26
    """
    return sum(map(_bytes_of_leaf, leaves_of(value)))


def _bytes_of_leaf(leaf: Any) -> int:
    size = getattr(leaf, "nbytes", None)
    if isinstance(size, int):
        return size
    # a TensorFlow tensor
    count = getattr(getattr(leaf, "shape", None), "num_elements", lambda: None)()
    return (count or 0) * int(getattr(leaf.dtype, "size", 0)) if count else 0
