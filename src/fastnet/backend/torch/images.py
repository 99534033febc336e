"""Normalizing images and resizing volumes in PyTorch, channels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastnet.backend.precision import compute_precision

CHANNEL_AXIS = 1


class Normalizer:
    """Normalizes images per channel.

    It computes in Keras's compute dtype if that is float16 (as in FastEstimator), else float32.
    """

    def __init__(self, mean: Any, std: Any, max_pixel_value: float, epsilon: float = 1e-7) -> None:
        self._mean, self._std = mean, std
        self._max_pixel_value, self._epsilon = max_pixel_value, epsilon
        self._dtype: torch.dtype = getattr(torch, compute_precision())
        self._constants_device: torch.device | None = None
        self._shift, self._scale = torch.empty(0), torch.empty(0)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Normalize images."""
        device = tensor.device
        if device != self._constants_device:
            # Autograd cannot use tensors that were created in inference mode.
            with torch.inference_mode(False):
                self._shift = self._constant(self._mean, device)
                self._scale = self._constant(self._std, device) + self._epsilon
            self._constants_device = device
        if tensor.dtype is not self._dtype:
            tensor = tensor.to(self._dtype)
        return (tensor - self._shift) / self._scale

    def _constant(self, setting: Any, device: torch.device) -> Tensor:
        """Convert the mean or deviation, scaled by the largest pixel value, to a tensor."""
        parts = list(map(float, setting)) if hasattr(setting, "__len__") else float(setting)
        constant = (torch.tensor(parts) * self._max_pixel_value).to(device, self._dtype)
        return constant.reshape(-1, 1, 1) if constant.dim() else constant


def resize_3d(tensor: Tensor, output_shape: Sequence[int], resize_mode: str = "nearest") -> Tensor:
    """Resize volumes, shape (batch, channels, height, width, depth)."""
    return functional.interpolate(tensor, tuple(output_shape), mode=resize_mode)
