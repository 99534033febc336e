"""State beside weights in torch: generators, and tensors that are not saved with a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.optim import Optimizer

from fastnet.backend.held_state import HeldState
from fastnet.backend.torch._internals import TABLES, tables_of, unsaved_buffers, version_of
from fastnet.backend.torch.optimizer_state import has_custom_state_dict
from fastnet.backend.torch.wrappers import innermost
from fastnet.types import Model

# Larger tensors, in bytes, are not kept alive to be compared with what has replaced them.
_MAX_KEPT = 2**20


def parts_of(value: Any) -> dict[str, Any] | None:
    """Return a module and the modules inside of it by name, or None for anything else."""
    return dict(innermost(value).named_modules()) if isinstance(value, torch.nn.Module) else None


def attributes_of(module: Any, is_saved: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module, without those that are saved with a model."""
    for name, value in vars(module).items():
        is_part = name in TABLES or name.endswith("_hooks")
        if not is_part and not (isinstance(value, Optimizer) and has_custom_state_dict(value)):
            yield name, value
    unsaved = unsaved_buffers(module)
    for name, tensor in (item for table in tables_of(module) for item in table.items()):
        if not is_saved or name in unsaved:
            yield name, tensor


def weights_of(model: Model) -> list[torch.Tensor]:
    """List the tensors of a model that are saved with it."""
    module = innermost(model)
    unsaved = {
        id(buffers[name])
        for inner in module.modules()
        for _, buffers in [tables_of(inner)]
        for name in unsaved_buffers(inner)
    }
    tensors: Any = (*module.parameters(), *module.buffers())
    return [tensor for tensor in tensors if id(tensor) not in unsaved]


def held(value: Any) -> HeldState | None:
    """Return the state of a generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return HeldState("Generator", True, value.get_state, value.set_state)
    return None


class WatchedTensor(NamedTuple):
    """A tensor at some time.

    Attributes:
        reference: Refers to the tensor.
        kept: The tensor, unless it is large.
        version: How often it was written to.
        kind: Its shape, dtype, device and layout.
    """

    reference: ReferenceType[torch.Tensor]
    kept: torch.Tensor | None
    version: int
    kind: tuple[Any, ...]


def tensors_in(values: Mapping[str, Any]) -> dict[str, WatchedTensor]:
    """Return the tensors among values as they are now.

    Results of differentiable operations are left out: no later step can differentiate through them.
    """
    return {
        path: WatchedTensor(
            ref(value),
            value if value.nbytes <= _MAX_KEPT else None,
            version_of(value),
            (value.shape, value.dtype, value.device, value.layout),
        )
        for path, value in values.items()
        if isinstance(value, torch.Tensor)
        and not value.is_inference()
        and not torch.nn.parameter.is_lazy(value)
        and value.grad_fn is None
    }


def changed_tensors(before: Mapping[str, WatchedTensor], values: Mapping[str, Any]) -> list[str]:
    """List the paths of tensors that were written to, or replaced by tensors of other values."""
    now = tensors_in(values)
    return [
        path
        for path, watched in before.items()
        if path in now and _differs(watched, values[path], now[path])
    ]


def _differs(watched: WatchedTensor, tensor: torch.Tensor, now: WatchedTensor) -> bool:
    before = watched.reference()
    if before is tensor:
        return watched.version != now.version
    # A tensor of another shape, dtype or device is more likely a cache that was made again.
    if watched.kind != now.kind or tensor.layout != torch.strided:
        return False
    return before is None or not torch.equal(before, tensor)
