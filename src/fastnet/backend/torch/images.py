"""Torch images and volumes, their channels in front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastnet.backend.precision import compute_precision

__all__ = ["CHANNEL_AXIS", "normalize", "resize_3d"]

CHANNEL_AXIS = 1


def normalize(
    tensor: Tensor,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    max_pixel_value: float,
    epsilon: float = 1e-7,
) -> Tensor:
    """Shift and scale images, a channel at a time."""
    dtype = getattr(torch, compute_precision())
    shift, scale = _constants(
        _hashable(mean), _hashable(std), max_pixel_value, epsilon, dtype, tensor.device
    )
    return (tensor.to(dtype) - shift) / scale


def resize_3d(tensor: Tensor, output_shape: Sequence[int], resize_mode: str = "nearest") -> Tensor:
    """Resize volumes, shape (batch, channels, height, width, depth)."""
    return functional.interpolate(tensor, tuple(output_shape), mode=resize_mode)


def _hashable(setting: Any) -> float | tuple[float, ...]:
    return tuple(map(float, setting)) if hasattr(setting, "__len__") else float(setting)


@lru_cache(maxsize=32)
def _constants(
    mean: float | tuple[float, ...],
    std: float | tuple[float, ...],
    max_pixel_value: float,
    epsilon: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Put the settings on the device, once for all steps."""
    # what inference mode makes, no later step could take gradients of
    with torch.inference_mode(False):
        shift, scale = ((torch.tensor(each) * max_pixel_value).to(dtype) for each in (mean, std))
        scale = scale + epsilon
        return tuple(  # type: ignore[return-value]
            (each.reshape(-1, 1, 1) if each.dim() else each).to(device) for each in (shift, scale)
        )
