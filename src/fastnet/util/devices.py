"""Selection of torch devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_VARIABLE = "FASTNET_DEVICE"
_LOCAL_RANK = "LOCAL_RANK"

# In order of preference.
_TYPES = ("mps", "cuda", "xpu", "cpu")
_INDEXED_TYPES = ("cuda", "xpu")


def get_device() -> torch.device:
    """Choose the torch device for this process.

    Returns:
        The device that the environment variable `FASTNET_DEVICE` names, or else the one that
        `torch.set_default_device` was called with. Without either, the best available device:
        Apple's "mps"; the CUDA or XPU device with the index `LOCAL_RANK`, which torchrun sets, or
        the first one; or the CPU.

    Raises:
        ValueError: If the variable names a device that is not available, or if `LOCAL_RANK` is not
            below the number of devices.

    >>> get_device().type in {"mps", "cuda", "xpu", "cpu"}
    True
    """
    name = os.environ.get(_VARIABLE)
    if name:
        return _parse_device(name, f"{_VARIABLE}={name}")
    import torch

    default = torch.get_default_device()
    return _best_device() if default.type in ("cpu", "meta") else _with_index(default)


@cache
def get_num_gpus() -> int:
    """Count the GPUs that torch can use.

    Returns:
        1 for Apple's "mps", else the number of CUDA devices, which may be 0.
    """
    return _count("mps") or _count("cuda")


@cache
def get_num_devices() -> int:
    """Count the devices that a batch can be split across.

    Returns:
        The number of CUDA devices, or 1 if there are none.
    """
    return max(_count("cuda"), 1)


def resolve_device(device: Any) -> torch.device:
    """Return the device for a `torch.device`, a name, an index, or None for `get_device()`.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    return get_device() if device is None else _parse_device(device, f"device={device!r}")


@cache
def has_accelerator() -> bool:
    """Return whether torch has any device besides the CPU."""
    import torch

    return torch.accelerator.is_available()


def stream_synchronizer(device: torch.device) -> Callable[[], None] | None:
    """Return a function that waits for the current stream, or None if copies are synchronous."""
    if device.type != "cuda":
        return None
    import torch

    return lambda: torch.cuda.current_stream(device).synchronize()


def _best_type() -> str:
    return next(name for name in _TYPES if _count(name))


def _best_device() -> torch.device:
    import torch

    name = _best_type()
    if name not in _INDEXED_TYPES:
        return torch.device(name)
    rank = os.environ.get(_LOCAL_RANK, "0")
    index = int(rank) if rank.isdigit() else 0
    count = _count(name)
    if index >= count:
        raise ValueError(
            f"This process has {_LOCAL_RANK}={rank}, but the machine has {count} {name} "
            f"device{'' if count == 1 else 's'}. Start at most {count} processes on it, or set "
            f"{_VARIABLE}=cpu."
        )
    return torch.device(name, index)


def _count(device_type: str) -> int:
    import torch

    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:
        # Types without a module, such as "meta", cannot be counted.
        return 1
    return int(module.device_count())


def _parse_device(value: Any, title: str) -> torch.device:
    import torch

    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        raise TypeError(
            f"{title} is of type {type(value).__name__}. Pass a torch.device, a name such as "
            "'cuda:1', an index, or None."
        )
    try:
        args = (_best_type(), value) if isinstance(value, int) else (value,)
        device = torch.device(*args)
    except RuntimeError as error:
        raise ValueError(
            f"{title} is not a torch device: {error}. Valid names are, for example, 'cpu', "
            "'cuda:1' and 'mps'."
        ) from error
    if _count(device.type) <= (device.index or 0):
        counts = {name: _count(name) for name in _TYPES}
        available = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise ValueError(
            f"{title}, but this machine has no such device: it has {available}. Pass one of "
            "these, or None to choose automatically."
        )
    return _with_index(device)


def _with_index(device: torch.device) -> torch.device:
    """Return the device as its tensors report it: with an index, except for the CPU."""
    import torch

    if device.type == "cpu":
        return torch.device("cpu")
    index: int | None = device.index
    if index is not None or device.type not in _INDEXED_TYPES:
        return device
    rank = os.environ.get(_LOCAL_RANK, "")
    current = torch.get_device_module(device).current_device
    return torch.device(device.type, int(rank) if rank.isdigit() else current())
