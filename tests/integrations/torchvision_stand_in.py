"""FastEstimator's Normalize where torchvision is not installed.

FastEstimator 1.7.0 imports torchvision without asking for it to be installed, and calls one thing
of it: for torch, the subtraction of means and the division by deviations, a channel at a time. This
module lets that import succeed; all else is FastEstimator's.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch


class Normalize:
    """What torchvision's class of this name does to a tensor that it may not change."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        self.mean, self.std = mean, std

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        mean, std = (
            one.to(tensor.dtype).reshape(-1, 1, 1) if one.dim() else one.to(tensor.dtype)
            for one in (self.mean, self.std)
        )
        return (tensor - mean) / std


@contextmanager
def complete_fastestimator() -> Iterator[None]:
    """Let FastEstimator import what it has left out of its requirements."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    package, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
    transforms.Normalize = Normalize  # type: ignore[attr-defined]
    package.transforms = transforms  # type: ignore[attr-defined]
    names = {"torchvision": package, "torchvision.transforms": transforms}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
