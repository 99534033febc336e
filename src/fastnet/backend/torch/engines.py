"""What spreads a torch model over processes or devices: which engine it has, and what is inside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.names import compiled_in, innermost

__all__ = [
    "Engine",
    "bare",
    "engine_of",
    "groups_of",
    "has_group",
    "is_sharded",
    "process_count",
    "sharded_modules",
    "wrapper_of",
]

Engine: TypeAlias = Literal["ddp", "fsdp", "dp"]


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """Find the model inside of DistributedDataParallel, DataParallel and `torch.compile`.

    Args:
        model: A model, wrapped once, several times or not at all. FSDP2 shards a model in place.

    Returns:
        The model that was wrapped first.
    """
    return innermost(model)


def engine_of(model: torch.nn.Module) -> Engine | None:
    """Tell what spreads a model.

    Args:
        model: A model, compiled or not.

    Returns:
        "ddp" for DistributedDataParallel, "fsdp" for one that `fully_shard` has sharded, or parts
        of which it has, "dp" for DataParallel; None for a model that nothing spreads.
    """
    wrapper = wrapper_of(model)
    if isinstance(wrapper, DistributedDataParallel):
        return "ddp"
    if isinstance(wrapper, torch.nn.DataParallel):
        return "dp"
    return "fsdp" if any(True for _ in sharded_modules(model)) else None


def wrapper_of(model: torch.nn.Module) -> torch.nn.Module:
    """Find what is inside of a compiled model: the engine's wrapper, or the model itself.

    Args:
        model: A model, compiled or not.

    Returns:
        The first one that no compiler has made.
    """
    inner = compiled_in(model)
    while inner is not None:
        model, inner = inner, compiled_in(inner)
    return model


def sharded_modules(model: torch.nn.Module) -> Iterator[Any]:
    """List the modules of a model that `fully_shard` was called with.

    Args:
        model: The model.

    Yields:
        The modules, the outer ones first.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:  # else none has been made
        yield from (one for one in model.modules() if isinstance(one, fsdp.FSDPModule))


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is one of `torch.distributed`, of which each process has a part.

    Args:
        tensor: Anything.

    Returns:
        True if it is.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def groups_of(model: torch.nn.Module) -> list[Any]:
    """List the process groups that a model's gradients are averaged over, one after the other.

    Args:
        model: A model with the engine "ddp" or "fsdp".

    Returns:
        The groups: one, or for a mesh of several dimensions one for each of them.
    """
    wrapper: Any = wrapper_of(model)
    if isinstance(wrapper, DistributedDataParallel):
        return [wrapper.process_group]
    sharded: Any = next(one for one in model.parameters() if is_sharded(one))
    mesh = sharded.device_mesh
    return [mesh.get_group(dimension) for dimension in range(mesh.ndim)]


def has_group() -> bool:
    """Return whether this process is in a process group, whoever has initialised it."""
    return dist.is_available() and dist.is_initialized()


def process_count() -> int:
    """Count the processes of the process group that was initialised.

    Returns:
        Their number; 1 if there is no process group.
    """
    return dist.get_world_size() if has_group() else 1
