"""What this machine computes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = [
    "get_device",
    "get_num_devices",
    "get_num_gpus",
    "has_accelerator",
    "read_device",
    "stream_waiter",
]

VARIABLE = "FASTNET_DEVICE"
"""Names the device of programs that name none themselves."""

_LOCAL_RANK = "LOCAL_RANK"


class _Kind(NamedTuple):
    """A kind of device.

    Attributes:
        module: Torch's module for it.
        has_several: Whether a machine may have several.
        queues: Whether copies from and to it are queued in a stream, to be waited for at the end.
    """

    module: str
    has_several: bool
    queues: bool = False


# the best first
_KINDS = {
    "mps": _Kind("torch.backends.mps", has_several=False),
    "cuda": _Kind("torch.cuda", has_several=True, queues=True),
    "xpu": _Kind("torch.xpu", has_several=True),
    "cpu": _Kind("torch.cpu", has_several=False),
}


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
def has_accelerator() -> bool:
    """Return whether torch can compute on anything here but the CPU."""
    import torch

    # torch 2.6 and newer have it; it knows of devices that come with packages of their own
    accelerator: Any = getattr(torch, "accelerator", None)
    return _best_kind() != "cpu" or (accelerator is not None and accelerator.is_available())


@cache
def get_num_gpus() -> int:
    """Count the GPUs that torch can use.

    Returns:
        1 for Apple's "mps", else the number of CUDA devices, which may be 0.
    """
    return _count("mps") or _count("cuda")


@cache
def get_num_devices() -> int:
    """Count the devices that a batch can be spread over.

    Returns:
        The number of CUDA devices, or 1 if there are none.
    """
    return max(_count("cuda"), 1)


def stream_waiter(device: torch.device) -> Callable[[], None] | None:
    """Return the function that waits for what the caller has queued on a device.

    Args:
        device: The device.

    Returns:
        A function that waits for the stream that is then current, or None for a device whose copies
        are not queued.
    """
    if device.type not in _KINDS or not _KINDS[device.type].queues:
        return None
    module = _module_of(device.type)
    return lambda: module.current_stream(device).synchronize()


def _best() -> torch.device:
    import torch

    kind = _best_kind()
    if not _has_several(kind):
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
    return next(kind for kind in _KINDS if _count(kind))


def _count(kind: str) -> int:
    """Count the devices of a kind; what torch cannot count has one."""
    module = _module_of(kind)
    if hasattr(module, "is_available") and not module.is_available():
        return 0
    return int(module.device_count()) if _has_several(kind) else 1


def _has_several(kind: str) -> bool:
    return kind in _KINDS and _KINDS[kind].has_several


def _module_of(kind: str) -> Any:
    """Find torch's module for a kind; None for what has none, such as "meta"."""
    import torch

    return import_module(_KINDS[kind].module) if kind in _KINDS else getattr(torch, kind, None)


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
        kinds = {kind: _count(kind) for kind in _KINDS}
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
    if index is None and _has_several(device.type):
        if os.environ.get(_LOCAL_RANK, "").isdigit():
            return torch.device(device.type, int(os.environ[_LOCAL_RANK]))
        return torch.device(device.type, _module_of(device.type).current_device())
    return device
