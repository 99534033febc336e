"""Images and volumes in numpy arrays, their channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.precision import compute_precision

__all__ = ["CHANNEL_AXIS", "normalize", "resize_3d"]

CHANNEL_AXIS = -1

Array: TypeAlias = NDArray[Any]


def normalize(
    tensor: Array,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    max_pixel_value: float,
    epsilon: float = 1e-7,
) -> Array:
    """Shift and scale images, a channel at a time."""
    dtype = compute_precision()
    shift, scale = ((np.array(each) * max_pixel_value).astype(dtype) for each in (mean, std))
    normalized: Array = (tensor.astype(dtype) - shift) / (scale + np.array(epsilon, dtype))
    return normalized


def resize_3d(tensor: Array, output_shape: Sequence[int], resize_mode: str = "nearest") -> Array:
    """Resize volumes, shape (batch, height, width, depth, channels)."""
    if resize_mode == "nearest":
        for axis, size in enumerate(output_shape, start=1):
            tensor = np.take(tensor, _nearest_places(tensor.shape[axis], size), axis=axis)
        return tensor
    tensor = tensor.astype("float32")
    for axis, size in enumerate(output_shape, start=1):
        weights = _area_weights(tensor.shape[axis], size)
        tensor = np.moveaxis(np.tensordot(weights, tensor, axes=(1, axis)), 0, axis)
    return tensor


def _nearest_places(size: int, new_size: int) -> NDArray[np.int64]:
    """Find the old position nearest to each new one."""
    # in single precision, where a rounding decides, as TensorFlow does
    scale = np.float32(size) / np.float32(new_size)
    centers = (np.arange(new_size, dtype="float32") + np.float32(0.5)) * scale
    places: NDArray[np.int64] = np.minimum(np.floor(centers).astype("int64"), size - 1)
    return places


def _area_weights(size: int, new_size: int) -> Array:
    """Find how much of each new position each old one covers, shape (new_size, size)."""
    old = np.arange(size)[None]
    # in units of which both old and new positions are whole numbers
    starts = np.arange(new_size)[:, None] * size
    covered = np.minimum(starts + size, (old + 1) * new_size) - np.maximum(starts, old * new_size)
    weights: Array = np.maximum(covered, 0).astype("float32") / np.float32(size)
    return weights
