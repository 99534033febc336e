"""Random torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from fastnet.backend.torch.tensors import dtype_of

__all__ = ["random_normal_like", "random_uniform_like"]


def random_normal_like(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str | torch.dtype | None = "float32",
) -> Tensor:
    """Draw from a normal distribution, in the shape of a tensor and on its device."""
    return torch.randn_like(tensor, dtype=dtype_of(dtype)) * std + mean


def random_uniform_like(
    tensor: Tensor,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: str | torch.dtype | None = "float32",
) -> Tensor:
    """Draw evenly from an interval, in the shape of a tensor and on its device."""
    return torch.rand_like(tensor, dtype=dtype_of(dtype)) * (maxval - minval) + minval
