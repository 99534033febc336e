"""The processes of a `torch.distributed` program."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastnet.backend.joining import TensorKind, join_results
from fastnet.backend.torch._internals import profiler_is_on
from fastnet.backend.torch.full_tensors import local_tensor
from fastnet.backend.torch.wrappers import (
    engine_of,
    groups_of,
    has_group,
    process_count,
    wrapper_of,
)
from fastnet.errors import add_note
from fastnet.util.launchers import torch_processes

__all__ = [
    "barrier",
    "collect",
    "communication",
    "describe_parallelism",
    "exchange",
    "gather",
    "note_failure",
    "rank",
    "seed",
    "start",
    "stop",
    "world_size",
]

# How torch's profiler names collectives.
_COLLECTIVES = ("gloo:", "nccl:", "xccl:")
# Whether `start` made the process group, and `stop` destroys it.
_owned = False


def start(backend: str | None = None, device: Any = None, timeout: float | None = None) -> None:
    """Initialize the process group, unless there is one or the launcher started one process."""
    global _owned
    if has_group() or torch_processes() == 1:
        return
    chosen = _find_device(device)
    if chosen.type not in ("cpu", "mps"):
        torch.get_device_module(chosen).set_device(chosen)
    seconds = None if timeout is None else timedelta(seconds=timeout)
    dist.init_process_group(backend or _backend_for(chosen), timeout=seconds)
    _owned = True


def stop() -> None:
    """Destroy the process group if `start` made it."""
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


def world_size() -> int:
    """Return the number of processes."""
    return process_count()


def barrier() -> None:
    """Wait until all processes have called this."""
    dist.barrier()


def note_failure(error: BaseException) -> None:
    """Explain a failed collective call, and write the error for torchrun to print at the end."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if isinstance(error, dist.DistError) or "gloo" in str(error):
        add_note(
            error,
            "Another rank has failed, has ended, or is elsewhere in the program. All ranks need as "
            "many training steps: a DistributedSampler gives them as many batches.",
        )
    get_error_handler().record_exception(error)


def seed(number: int) -> None:
    """Seed torch's generators."""
    torch.manual_seed(number)


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Combine the results of all processes, as `fastnet.distributed.gather` documents."""
    results, sizes = zip(*exchange((dict(result), samples)), strict=True)
    return join_results(results, sizes, _KIND)


def exchange(value: Any) -> list[Any]:
    """Return the values of all processes; tensors are moved to the CPU."""
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, _on_cpu(value))
    return values


def collect(value: Any) -> list[Any] | None:
    """Return the values of all processes on rank 0, and None on the others."""
    values = [None] * world_size() if rank() == 0 else None
    dist.gather_object(_on_cpu(value), values, dst=0)
    return values


def describe_parallelism(model: torch.nn.Module) -> str | None:
    """Describe how a model is wrapped, and over how many processes or devices."""
    engine = engine_of(model)
    if engine is None:
        return None
    if engine == "dp":
        wrapper: Any = wrapper_of(model)
        return f"in DataParallel over {max(len(wrapper.device_ids), 1)} devices"
    count = math.prod(dist.get_world_size(group) for group in groups_of(model))
    if engine == "ddp":
        return f"in DistributedDataParallel over {count} processes"
    full = sum(one.numel() for one in model.parameters())
    local = sum(local_tensor(one).numel() for one in model.parameters())
    return f"sharded by FSDP2 over {count} processes, {local:,} of {full:,} parameters in this one"


@contextmanager
def communication() -> Iterator[dict[str, list[float]]]:
    """Time collectives with torch's profiler; the dict is filled when the context is left."""
    found: dict[str, list[float]] = {}
    if profiler_is_on():
        yield found
        return
    devices = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        devices.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=devices) as profile:
        yield found
    for event in profile.events():
        if event.name.startswith(_COLLECTIVES):
            found.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e6)


def _find_device(device: Any) -> torch.device:
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if device is None:
        each = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"])
        device = "cuda" if torch.cuda.device_count() >= each else "cpu"
    chosen = torch.device(device)
    has_index = chosen.type in ("cpu", "mps") or chosen.index is not None
    return chosen if has_index else torch.device(chosen.type, local)


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


_KIND = TensorKind(
    is_tensor=torch.is_tensor,
    has_rows=lambda tensor: tensor.ndim > 0,
    is_number=lambda tensor: tensor.ndim == 0 and not tensor.is_complex(),
    concatenate=torch.cat,
    mean_like=_mean_like,
    errors=(RuntimeError, ValueError),
)
