"""Torch images and volumes, their channels in front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastnet.backend.precision import compute_precision

__all__ = ["CHANNEL_AXIS", "Normalizer", "normalize", "resize_3d"]

CHANNEL_AXIS = 1


def normalize(
    tensor: Tensor,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    max_pixel_value: float,
    epsilon: float = 1e-7,
) -> Tensor:
    """Shift and scale images, a channel at a time."""
    return Normalizer(mean, std, max_pixel_value, epsilon)(tensor)


class Normalizer:
    """Shifts and scales images, a channel at a time.

    Args:
        mean: The mean, one for all channels or one a channel.
        std: The standard deviation, likewise.
        max_pixel_value: The largest value that a pixel can have.
        epsilon: What is added to the deviation.
    """

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        max_pixel_value: float,
        epsilon: float = 1e-7,
    ) -> None:
        self._settings = _hashable(mean), _hashable(std), max_pixel_value, epsilon
        self._made_for: tuple[str, torch.device] | None = None
        self._dtype, self._shift, self._scale = torch.float32, torch.empty(0), torch.empty(0)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Shift and scale.

        Args:
            tensor: The images.

        Returns:
            The same images, normalized.
        """
        precision, device = compute_precision(), tensor.device
        if (precision, device) != self._made_for:
            self._dtype = getattr(torch, precision)
            self._shift, self._scale = _constants(*self._settings, self._dtype, device)
            self._made_for = precision, device
        if tensor.dtype is not self._dtype:
            tensor = tensor.to(self._dtype)
        return (tensor - self._shift) / self._scale


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
