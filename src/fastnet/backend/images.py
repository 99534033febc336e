"""Functions of images and volumes."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fastnet.backend.dispatch import backend_of
from fastnet.errors import shorten

__all__ = ["get_image_dims", "normalize", "resize_3d"]

T = TypeVar("T")

RESIZE_MODES = ("nearest", "area")


def get_image_dims(tensor: Any) -> tuple[int, int, int]:
    """Return the size of an image.

    Args:
        tensor: One image or a batch, shape (..., channels, height, width) in torch, and
            (..., height, width, channels) elsewhere.

    Returns:
        The channels, height and width. In a TensorFlow graph, a tensor for each unknown length.

    Raises:
        AssertionError: If the tensor has neither three nor four axes.

    >>> import numpy as np
    >>> get_image_dims(np.ones((8, 28, 30, 3)))
    (3, 28, 30)
    """
    functions = backend_of(tensor)
    if len(tensor.shape) not in (3, 4):
        raise AssertionError(
            f"An image has three axes, and a batch of images four, but got the shape "
            f"{tuple(tensor.shape)}."
        )
    size = functions.get_shape(tensor)[-3:]
    height, width, channels = size if functions.CHANNEL_AXIS == -1 else (*size[1:], size[0])
    return channels, height, width


def normalize(
    tensor: T,
    mean: float | Sequence[float] = (0.485, 0.456, 0.406),
    std: float | Sequence[float] = (0.229, 0.224, 0.225),
    max_pixel_value: float = 255.0,
    epsilon: float = 1e-7,
) -> T:
    """Normalize images by the mean and standard deviation of each channel.

    Computes ``(tensor - mean * max_pixel_value) / (std * max_pixel_value + epsilon)``.

    Args:
        tensor: Images, shape (..., channels, height, width) in torch, and (..., height, width,
            channels) elsewhere.
        mean: The mean, for all channels or for each; by default that of ImageNet.
        std: The standard deviation, likewise.
        max_pixel_value: The largest possible value of a pixel.
        epsilon: Added to the standard deviation.

    Returns:
        Images of the same shape, in float32, or in float16 if that is Keras's precision policy.

    >>> import numpy as np
    >>> normalize(np.array([[[0.5], [1.0]]]), mean=0.5, std=0.25, max_pixel_value=1.0).round(3)
    array([[[0.],
            [2.]]], dtype=float32)
    """
    return backend_of(tensor).Normalizer(mean, std, max_pixel_value, epsilon)(tensor)


def resize_3d(tensor: T, output_shape: Sequence[int], resize_mode: str = "nearest") -> T:
    """Resize volumes.

    Args:
        tensor: Volumes, shape (batch, channels, height, width, depth) in torch, and (batch, height,
            width, depth, channels) elsewhere.
        output_shape: The new height, width and depth.
        resize_mode: "nearest" for nearest-neighbor interpolation, or "area" for averages, which
            numpy arrays do not support.

    Returns:
        The resized volumes; in TensorFlow averages are float32.

    Raises:
        AssertionError: If there is no such `resize_mode`.
        ValueError: If `resize_mode` is "area" for a numpy array.

    >>> import torch
    >>> resize_3d(torch.ones(1, 1, 4, 4, 4), output_shape=(2, 2, 3)).shape
    torch.Size([1, 1, 2, 2, 3])
    """
    if resize_mode not in RESIZE_MODES:
        raise AssertionError(
            f"resize_mode must be one of {list(RESIZE_MODES)}, but got {shorten(resize_mode)}."
        )
    return backend_of(tensor).resize_3d(tensor, output_shape, resize_mode)
