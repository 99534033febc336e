"""Wraps or shards torch models when they are built: `build(parallel=...)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.model_metadata import reserve, set_metadata
from fastnet.backend.torch.parallel_update import note_parameters
from fastnet.backend.torch.wrappers import has_group, parallel_type, world_size
from fastnet.errors import shorten
from fastnet.util.devices import resolve_device
from fastnet.util.launchers import torch_processes

PARALLEL = ("auto", "ddp", "fsdp", None)


class Placement(NamedTuple):
    """The `device`, `parallel` and options that `build` was called with."""

    device: Any = None
    parallel: str | None = "auto"
    options: Mapping[str, Any] = {}


def parallelize(model: torch.nn.Module, placement: Placement, name: str) -> torch.nn.Module:
    """Move a model to its device, wrap or shard it, and note in its metadata how it was placed.

    A model that is wrapped or sharded already stays as it is.

    Raises:
        ValueError: If there is no such engine or device, the model has another engine, or there is
            no process group where one is needed.
        TypeError: If the engine has no such option.
    """
    placed = _place(model, placement, name)
    reserve(placed)
    is_placed = placement.device is not None or parallel_type(placed) is not None
    first = next(placed.parameters(), None)
    device = first.device if is_placed and first is not None else None
    set_metadata(placed, "fe_device", device)
    set_metadata(placed, "fe_alone", placement.parallel is None)
    return placed


def _place(model: torch.nn.Module, placement: Placement, name: str) -> torch.nn.Module:
    parallel = placement.parallel
    if parallel not in PARALLEL:
        raise ValueError(
            f"parallel={shorten(parallel)} of model '{name}' is none of 'auto', 'ddp', 'fsdp' "
            "and None."
        )
    existing = parallel_type(model)
    if existing is not None:
        if parallel not in ("auto", None, existing) or placement.options:
            raise ValueError(
                f"Model '{name}' already is {existing!r}, so parallel={parallel!r} and the options "
                f"{sorted(placement.options)} come too late. Pass them where it is wrapped, or "
                "pass the model without a wrapper."
            )
        note_parameters(model)
        return model
    engine = _resolve_auto(model, name) if parallel == "auto" else parallel
    if engine is None:
        _check_options(placement, name)
        return model if placement.device is None else model.to(resolve_device(placement.device))
    if not has_group():
        raise _no_group(parallel, name)
    wrap = _wrap_ddp if engine == "ddp" else _shard
    return wrap(model, resolve_device(placement.device), dict(placement.options))


def _resolve_auto(model: torch.nn.Module, name: str) -> str | None:
    if world_size() > 1:
        # DistributedDataParallel rejects a model without trainable parameters.
        is_trainable = any(parameter.requires_grad for parameter in model.parameters())
        return "ddp" if is_trainable else None
    if torch_processes() > 1 and "LOCAL_RANK" in os.environ and not has_group():
        raise _no_group("auto", name)
    return None


def _check_options(placement: Placement, name: str) -> None:
    """Raise a TypeError for options that nothing would read."""
    # With "auto", the same program runs in one process, too.
    is_auto = placement.parallel == "auto"
    known = signature(DistributedDataParallel).parameters if is_auto else {}
    unknown = [option for option in placement.options if option not in known]
    if unknown:
        raise TypeError(
            f"build of model '{name}' got {unknown}, which are options of neither build nor "
            f"parallel={placement.parallel!r}. Pass the settings of an optimizer in a function, "
            "such as `optimizer_fn=lambda params: torch.optim.Adam(params, lr=1e-3)`."
        )


def _no_group(parallel: str | None, name: str) -> ValueError:
    problem = f"There is no process group for model '{name}' (parallel={parallel!r})"
    count = torch_processes()
    if count > 1:
        problem += f", but torchrun has started {count} processes"
    return ValueError(
        f"{problem}. Call fastnet.distributed.init() before fastnet.build, or pass parallel=None "
        "for a model that each process trains alone."
    )


def _wrap_ddp(
    model: torch.nn.Module, device: torch.device, options: dict[str, Any]
) -> torch.nn.Module:
    model.to(device)
    ids = None if device.type == "cpu" else [device]
    wrapped = DistributedDataParallel(model, device_ids=ids, **options)
    note_parameters(wrapped)
    return wrapped


def _shard(
    model: torch.nn.Module, device: torch.device, options: dict[str, Any]
) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    blocks = _find_blocks(options.pop("blocks", ()), model)
    if "mesh" not in options:
        options["mesh"] = init_device_mesh(device.type, (dist.get_world_size(),))
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(device)
        _broadcast_weights(model, options["mesh"])
    # Inner modules come first, because each shards the parameters that are left.
    for module in reversed(blocks):
        fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def _find_blocks(blocks: Any, model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules to shard separately, outer ones first."""
    classes = blocks if isinstance(blocks, type) else tuple(blocks)
    modules = [
        module for module in model.modules() if module is not model and isinstance(module, classes)
    ]
    if blocks and not modules:
        raise ValueError(
            f"No module inside the model is one of blocks={shorten(blocks)}. Pass classes of "
            "modules; print(model) shows them."
        )
    return modules


def _broadcast_weights(model: torch.nn.Module, mesh: Any) -> None:
    """Give all processes the weights of rank 0, so that they shard the same model."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            for dimension in range(mesh.ndim):
                group = mesh.get_group(dimension)
                dist.broadcast(tensor.data, dist.get_global_rank(group, 0), group=group)
