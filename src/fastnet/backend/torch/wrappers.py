"""The wrappers around models: `torch.compile`, DataParallel, DistributedDataParallel and FSDP2."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch._internals import COMPILED, has_reduce_dtype


def parallel_type(model: Module) -> str | None:
    """Return "ddp", "fsdp" or "dp" for a model that is wrapped or sharded, else None."""
    wrapper = without_compile(model)
    if isinstance(wrapper, DistributedDataParallel):
        return "ddp"
    if isinstance(wrapper, torch.nn.DataParallel):
        return "dp"
    return "fsdp" if any(True for _ in _sharded_modules(model)) else None


def without_compile(model: Module) -> Module:
    """Return a model without the wrapper of `torch.compile`."""
    inner = original_module_of(model)
    return model if inner is None else without_compile(inner)


def unwrap(model: Module) -> Module:
    """Return the model inside of DataParallel or DistributedDataParallel, if it is wrapped."""
    wrappers = (torch.nn.DataParallel, DistributedDataParallel)
    inner: Module = model.module if isinstance(model, wrappers) else model
    return inner


def unwrap_all(model: Module) -> Module:
    """Return the model inside of all wrappers, including that of `torch.compile`."""
    inner = unwrap(without_compile(model))
    return model if inner is model else unwrap_all(inner)


def original_module_of(model: Module) -> Module | None:
    """Return the model inside of the result of `torch.compile`, or None for other models."""
    return dict(model.named_children()).get(COMPILED)


def groups_of(model: Module) -> list[Any]:
    """Return the process groups of a model, one per dimension of its mesh; none if it has none."""
    wrapper: Any = without_compile(model)
    if isinstance(wrapper, DistributedDataParallel):
        return [wrapper.process_group]
    reshard(model)
    sharded: Any = next(filter(is_sharded, model.parameters()), None)
    if sharded is None:
        return []
    mesh = sharded.device_mesh
    return [mesh.get_group(dimension) for dimension in range(mesh.ndim)]


def reshard(model: Module) -> None:
    """Put the sharded parameters of FSDP2 back into a model.

    After a forward pass the outermost module keeps the gathered parameters, which are not those
    that an optimizer updates.
    """
    for module in _sharded_modules(model):
        module.reshard()


def reset_fsdp(model: Module) -> None:
    """Let FSDP2 recover from a pass that raised."""
    root: Any = without_compile(model)
    if hasattr(root, "reset_iter_state"):
        with suppress(RuntimeError):  # The model is a part of another sharded one.
            root.reset_iter_state()


@contextmanager
def fsdp_no_sync(models: Iterable[Module]) -> Iterator[None]:
    """Let a backward pass leave this process's full gradients on `model.parameters()`.

    They are there until the context is left.
    """
    modules = [module for model in models for module in _sharded_modules(model)]
    try:
        for module in modules:
            module.set_requires_gradient_sync(False, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
        yield
    finally:
        for module in modules:
            for parameter in module.parameters():
                if not is_sharded(parameter):
                    parameter.grad = None
        for module in modules:
            module.reshard()
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_reshard_after_backward(True, recurse=False)


def reduces_in_own_dtype(model: Module) -> bool:
    """Return whether FSDP2 communicates gradients in a dtype of their own."""
    return any(map(has_reduce_dtype, _sharded_modules(model)))


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def has_group() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Return the number of processes in the default process group, or 1."""
    return dist.get_world_size() if has_group() else 1


def _sharded_modules(model: Module) -> Iterator[Any]:
    """Yield the modules that `fully_shard` was called with, outer ones first."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:  # Otherwise nothing was sharded.
        yield from (module for module in model.modules() if isinstance(module, fsdp.FSDPModule))
