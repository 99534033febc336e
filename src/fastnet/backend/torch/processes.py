"""The processes of a `torch.distributed` program."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastnet.backend.torch._internals import profiler_is_on
from fastnet.backend.torch.wrappers import groups_of, has_group, parallel_type
from fastnet.backend.torch.wrappers import world_size as world_size
from fastnet.distributed import TensorOps
from fastnet.errors import add_note
from fastnet.util.devices import resolve_device
from fastnet.util.launchers import torch_processes

# How torch's profiler names collectives.
_COLLECTIVES = ("gloo:", "nccl:", "xccl:")

# Whether `init` made the process group, and `shutdown` destroys it.
_owned = False


def init(backend: str | None = None, timeout: float | None = None) -> None:
    """Initialize the process group, unless there is one or the launcher started one process."""
    global _owned
    if has_group() or torch_processes() == 1:
        return
    device = resolve_device(None)
    if device.type not in ("cpu", "mps"):
        torch.get_device_module(device).set_device(device)
    seconds = None if timeout is None else timedelta(seconds=timeout)
    dist.init_process_group(backend or _backend_for(device), timeout=seconds)
    _owned = True


def shutdown() -> None:
    """Destroy the process group if `init` made it."""
    global _owned
    if _owned and has_group():
        # Wrappers in reference cycles keep the threads of gloo alive, which may abort the process
        # at its end.
        gc.collect()
        dist.destroy_process_group()
    _owned = False


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if has_group() else 0


def explain_failure(error: BaseException) -> None:
    """Explain a failed collective call, and write the error for torchrun to print at the end."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if isinstance(error, dist.DistError) or "gloo" in str(error):
        add_note(
            error,
            "Another rank has failed, has ended, or is elsewhere in the program. All ranks need "
            "the same number of training steps, and so of batches: use a DistributedSampler.",
        )
    get_error_handler().record_exception(error)


def all_gather_object(value: Any) -> list[Any]:
    """Return the values of all processes; tensors are moved to the CPU."""
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, _on_cpu(value))
    return values


def gather_object(value: Any) -> list[Any] | None:
    """Return the values of all processes on rank 0, and None on the others."""
    values = [None] * world_size() if rank() == 0 else None
    dist.gather_object(_on_cpu(value), values, dst=0)
    return values


def describe_parallelism(model: torch.nn.Module) -> str | None:
    """Describe how a model is wrapped, and over how many processes or devices."""
    how = {"ddp": "in DistributedDataParallel", "fsdp": "sharded by FSDP2"}
    engine = parallel_type(model)
    if engine not in how:
        return None
    count = math.prod(map(dist.get_world_size, groups_of(model)))
    return f"{how[engine]} over {count} processes"


@contextmanager
def time_collectives() -> Iterator[dict[str, list[float]]]:
    """Time collectives with torch's profiler; the dict is filled when the context is left.

    It stays empty if a profiler is on already.
    """
    seconds_by_name: dict[str, list[float]] = {}
    if profiler_is_on():
        yield seconds_by_name
        return
    devices = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        devices.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=devices) as profile:
        yield seconds_by_name
    for event in profile.events():
        if event.name.startswith(_COLLECTIVES):
            seconds = event.time_range.elapsed_us() / 1e6
            seconds_by_name.setdefault(event.name, []).append(seconds)


def _backend_for(device: torch.device) -> str:
    if device.type in ("cpu", "mps"):
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def _on_cpu(value: Any) -> Any:
    from fastnet.util import move_tensors_to_device

    return move_tensors_to_device(value, "cpu")


def _mean_like(mean: float, tensor: torch.Tensor) -> torch.Tensor:
    dtype = tensor.dtype if tensor.is_floating_point() else torch.float64
    return torch.tensor(mean, dtype=dtype, device=tensor.device)


TENSOR_OPS = TensorOps(
    is_tensor=torch.is_tensor,
    is_number=lambda tensor: tensor.ndim == 0 and not tensor.is_complex(),
    concatenate=torch.cat,
    mean_like=_mean_like,
    errors=(RuntimeError, ValueError),
)
