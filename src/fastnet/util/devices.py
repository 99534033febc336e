"""What this machine computes on."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["get_device", "get_num_devices", "get_num_gpus"]


@cache
def get_device() -> torch.device:
    """Choose the torch device for this machine.

    Returns:
        Apple's "mps" if there is one, else the first CUDA device, else the CPU.

    >>> get_device().type in {"mps", "cuda", "cpu"}
    True
    """
    import torch

    if torch.backends.mps.is_available():
        return torch.device("mps")
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    return torch.device("cpu")


@cache
def get_num_gpus() -> int:
    """Count the GPUs that torch can use.

    Returns:
        1 for Apple's "mps", else the number of CUDA devices, which may be 0.
    """
    import torch

    if torch.backends.mps.is_available():
        return 1
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return 0


@cache
def get_num_devices() -> int:
    """Count the devices that a batch can be spread over.

    Returns:
        The number of CUDA devices, or 1 if there are none.
    """
    import torch

    return max(torch.cuda.device_count(), 1)
