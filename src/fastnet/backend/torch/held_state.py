"""State that modules hold besides saved weights in torch: generators and unsaved tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from fastnet.backend.held_state import HeldState
from fastnet.backend.torch._internals import TABLES, tables_of, unsaved_buffers
from fastnet.backend.torch.optimizer_state import has_custom_state_dict
from fastnet.backend.torch.wrappers import unwrap_all
from fastnet.types import Model


def submodules_of(value: Any) -> dict[str, Any] | None:
    """Return a module and the modules inside of it by name, or None for anything else."""
    return dict(unwrap_all(value).named_modules()) if isinstance(value, torch.nn.Module) else None


def attributes_of(module: Any, is_saved: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module; without saved parameters and buffers if `is_saved`."""
    for name, value in vars(module).items():
        is_part = name in TABLES or name.endswith("_hooks")
        if not is_part and not (isinstance(value, Optimizer) and has_custom_state_dict(value)):
            yield name, value
    unsaved = unsaved_buffers(module)
    for table in tables_of(module):
        for name, tensor in table.items():
            if not is_saved or name in unsaved:
                yield name, tensor


def saved_tensors_of(model: Model) -> list[torch.Tensor]:
    """List the tensors of a model that are saved with it."""
    module = unwrap_all(model)
    unsaved: set[int] = set()
    for submodule in module.modules():
        _, buffers = tables_of(submodule)
        unsaved.update(id(buffers[name]) for name in unsaved_buffers(submodule))
    tensors: Any = (*module.parameters(), *module.buffers())
    return [tensor for tensor in tensors if id(tensor) not in unsaved]


def get_held_state(value: Any) -> HeldState | None:
    """Return the state of a generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return HeldState("Generator", True, value.get_state, value.set_state)
    return None
