"""Images and volumes of any framework."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fastnet.backend.dispatch import dispatched, implementation
from fastnet.errors import shorten

__all__ = ["normalize", "resize_3d"]

T = TypeVar("T")

RESIZE_MODES = ("nearest", "area")


@dispatched
def normalize(
    tensor: T,
    mean: float | Sequence[float] = (0.485, 0.456, 0.406),
    std: float | Sequence[float] = (0.229, 0.224, 0.225),
    max_pixel_value: float = 255.0,
    epsilon: float = 1e-7,
) -> T:
    """Shift and scale images by a mean and a standard deviation of each channel.

    Args:
        tensor: Images, shape (..., channels, height, width) in torch, and (..., height, width,
            channels) elsewhere.
        mean: The mean, one for all channels or one a channel; as it is, that of ImageNet.
        std: The standard deviation, likewise.
        max_pixel_value: What the two were divided by: the largest value that a pixel can have.
        epsilon: What is added to the standard deviation.

    Returns:
        Images of the same shape, in float32; in float16 where Keras's precision policy is so.

    Raises:
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import numpy as np
    >>> normalize(np.array([[[0.5], [1.0]]]), mean=0.5, std=0.25, max_pixel_value=1.0).round(3)
    array([[[0.],
            [2.]]], dtype=float32)
    """


def resize_3d(tensor: T, output_shape: Sequence[int], resize_mode: str = "nearest") -> T:
    """Resize volumes.

    Args:
        tensor: Volumes, shape (batch, channels, height, width, depth) in torch, and (batch, height,
            width, depth, channels) elsewhere.
        output_shape: The new height, width and depth.
        resize_mode: "nearest", for values of the old volume, or "area", for averages of them.

    Returns:
        Volumes of the new size; outside of torch averages are float32.

    Raises:
        AssertionError: If `resize_mode` is neither.
        ValueError: If the tensor is of no framework that fastnet knows.

    >>> import torch
    >>> resize_3d(torch.ones(1, 1, 4, 4, 4), output_shape=(2, 2, 3)).shape
    torch.Size([1, 1, 2, 2, 3])
    """
    if resize_mode not in RESIZE_MODES:
        raise AssertionError(
            f"resize_mode must be one of {list(RESIZE_MODES)}, but got {shorten(resize_mode)}."
        )
    resized: T = implementation(tensor).resize_3d(tensor, output_shape, resize_mode)
    return resized
