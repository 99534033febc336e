"""What this machine computes on."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["get_device", "get_num_devices", "get_num_gpus", "read_device"]

VARIABLE = "FASTNET_DEVICE"
"""Names the device of programs that name none themselves."""

_LOCAL_RANK = "LOCAL_RANK"


def get_device() -> torch.device:
    """Choose the torch device for this process.

    Returns:
        What the environment variable `FASTNET_DEVICE` names, or what `torch.set_default_device` was
        called with; else the best there is: Apple's "mps", the CUDA or XPU device of this process's
        `LOCAL_RANK`, which torchrun sets, or the first one without it, or the CPU.

    Raises:
        ValueError: If the variable names a device that is not there, or there are fewer devices
            than `LOCAL_RANK` counts processes.

    >>> get_device().type in {"mps", "cuda", "xpu", "cpu"}
    True
    """
    named = os.environ.get(VARIABLE)
    if named:
        return _checked(named, f"{VARIABLE}={named}")
    import torch

    default = torch.get_default_device()
    if default.type not in ("cpu", "meta"):
        return _with_index(default)
    return _best()


def read_device(device: Any) -> torch.device:
    """Find a device.

    Args:
        device: A `torch.device`, its name, an index among the best devices of the machine, or None
            for what `get_device` chooses.

    Returns:
        The device, with its index where there may be several.

    Raises:
        ValueError: If there is no such device.
        TypeError: If it is something else.

    >>> read_device("cpu")
    device(type='cpu')
    """
    return get_device() if device is None else _checked(device, f"device={device!r}")


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


def _best() -> torch.device:
    import torch

    kind = _best_kind()
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    rank = os.environ.get(_LOCAL_RANK, "0")
    index, count = int(rank) if rank.isdigit() else 0, _count(kind)
    if index >= count:
        raise ValueError(
            f"This process has {_LOCAL_RANK}={rank}, but the machine has {count} {kind} "
            f"device{'' if count == 1 else 's'}. Start at most {count} processes on it, or set "
            f"{VARIABLE}=cpu."
        )
    return torch.device(kind, index)


def _best_kind() -> str:
    return next(kind for kind in ("mps", "cuda", "xpu", "cpu") if _count(kind))


def _count(kind: str) -> int:
    """Count the devices of a kind; what torch cannot count has one."""
    import torch

    if kind == "mps":
        return int(torch.backends.mps.is_available())
    if kind in ("cuda", "xpu"):
        module: Any = getattr(torch, kind)
        return int(module.device_count()) if module.is_available() else 0
    other: Any = getattr(torch, kind, None)
    return int(not hasattr(other, "is_available") or other.is_available())


def _checked(given: Any, told: str) -> torch.device:
    import torch

    if isinstance(given, bool) or not isinstance(given, (str, int, torch.device)):
        raise TypeError(
            f"{told} is of type {type(given).__name__}. Pass a torch.device, a name such as "
            "'cuda:1', an index, or None."
        )
    if isinstance(given, int):
        device = torch.device(_best_kind(), given)
    else:
        try:
            device = torch.device(given)
        except RuntimeError as error:
            raise ValueError(
                f"{told} is no device of torch: {error}. Names are such as 'cpu', 'cuda:1' and "
                "'mps'."
            ) from error
    return _require_there(device, told)


def _require_there(device: torch.device, told: str) -> torch.device:
    count = _count(device.type)
    if count <= (device.index or 0):
        kinds = {kind: _count(kind) for kind in ("cuda", "xpu", "mps", "cpu")}
        there = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        raise ValueError(
            f"{told}, but this machine has no such device: it has {there}. Pass one of these, or "
            "None to have one chosen."
        )
    return _with_index(device)


def _with_index(device: torch.device) -> torch.device:
    """Say which one is meant, as tensors that are there do."""
    import torch

    if device.type == "cpu":
        return torch.device("cpu")
    index: int | None = device.index
    if index is None and device.type in ("cuda", "xpu"):
        module: Any = getattr(torch, device.type)
        if os.environ.get(_LOCAL_RANK, "").isdigit():
            return torch.device(device.type, int(os.environ[_LOCAL_RANK]))
        return torch.device(device.type, module.current_device())
    return device
