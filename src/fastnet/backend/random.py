"""Random tensors of any framework."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TypeVar

from fastnet.backend.dispatch import dispatched

__all__ = ["random_normal_like", "random_uniform_like"]

T = TypeVar("T")


@dispatched
def random_normal_like(
    tensor: T, mean: float = 0.0, std: float = 1.0, dtype: str | None = "float32"
) -> T:
    """Draw from a normal distribution, in the shape of a tensor.

    Args:
        tensor: A tensor of any shape.
        mean: The mean.
        std: The standard deviation.
        dtype: The type to draw in, by its name. None for the tensor's own.

    Returns:
        Numbers from the framework's global generator, of the tensor's shape and on its device.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows, or there is no such type.

    >>> import numpy as np
    >>> random_normal_like(np.zeros((2, 3))).shape
    (2, 3)
    """


@dispatched
def random_uniform_like(
    tensor: T, minval: float = 0.0, maxval: float = 1.0, dtype: str | None = "float32"
) -> T:
    """Draw evenly from an interval, in the shape of a tensor.

    Args:
        tensor: A tensor of any shape.
        minval: The lower end of the interval, which can be drawn.
        maxval: Its upper end, which cannot.
        dtype: The type to draw in, by its name. None for the tensor's own.

    Returns:
        Numbers from the framework's global generator, of the tensor's shape and on its device.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows, or there is no such type.

    >>> import numpy as np
    >>> drawn = random_uniform_like(np.zeros((2, 3)), minval=2.0, maxval=3.0)
    >>> bool((drawn >= 2).all() and (drawn <= 3).all())
    True
    """
