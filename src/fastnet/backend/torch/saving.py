"""Save torch models and their optimizers to files, and load them."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from fastnet.backend.files import require_optimizer_file, write_atomically
from fastnet.backend.model_metadata import (
    get_metadata,
    name_of,
    optimizers_of,
)
from fastnet.backend.torch import processes
from fastnet.backend.torch.full_tensors import full_tensors, full_weights, has_shards
from fastnet.backend.torch.optimizer_state import load_optimizer_state, optimizer_state
from fastnet.backend.torch.preserve_state import PreservedState
from fastnet.backend.torch.weights import load_weights, read_file, read_weights
from fastnet.backend.torch.wrappers import parallel_type
from fastnet.backend.weights import current_optimizer_index, pair_optimizers
from fastnet.distributed import raise_on_all_ranks
from fastnet.types import Model


def save_model(
    model: torch.nn.Module, stem: str, save_optimizer: bool, save_architecture: bool
) -> str:
    """Save the weights of a model, and the state of its optimizers beside them.

    All ranks call this together if the model is sharded; many programs let only one rank save.
    """
    if save_architecture:
        raise ValueError(
            f"The architecture of model '{name_of(model)}' cannot be saved, because torch keeps "
            "it in code. Leave save_architecture out, and make the model by the same code again."
        )
    sharded = has_shards(list(model.parameters()))
    contents: dict[str, Any] = {}
    if save_optimizer:  # Written first, because `_write` raises an error for an invalid state.
        contents[f"{stem}_opt.pt"] = full_tensors(_optimizer_states(model))
    contents[f"{stem}.pt"] = full_weights(model)
    with raise_on_all_ranks(processes if sharded else None, "Saving a model"):
        if processes.rank() == 0:
            for path, content in contents.items():
                write_atomically(path, partial(_write, content))
    return f"{stem}.pt"


def load_model(model: torch.nn.Module, path: str | os.PathLike[str], load_optimizer: bool) -> None:
    """Load what `save_model` has saved; if that fails on a rank, nothing changes on any.

    All ranks of a DDP or sharded model call this together.
    """
    parallel = parallel_type(model) in ("ddp", "fsdp")
    with (
        PreservedState([model]),
        raise_on_all_ranks(processes if parallel else None, "Loading a model"),
    ):
        weights = read_weights(path)
        # First, because it gives lazy parameters their shapes.
        load_weights(model, weights, f"The weights file '{path}'")
        if load_optimizer:
            _load_optimizers(model, f"{os.path.splitext(path)[0]}_opt.pt")


def _write(content: Any, path: str) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch's writer closes the archive after an error, and raises one that hides it.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if unsafe and "param_groups" in content:
        raise ValueError(
            f"The state of the optimizer has objects of {unsafe}, which cannot be loaded without "
            "executing code. Keep tensors, numbers, strings, and lists and dicts of these in it."
        )


def _optimizer_states(model: Model) -> dict[str, Any]:
    """Return the state of the current optimizer; under "scheduled" those of all in a schedule."""
    state = optimizer_state(get_metadata(model, "current_optimizer"), model)
    optimizers = optimizers_of(model)
    if len(optimizers) > 1 and current_optimizer_index(model) is not None:
        state["scheduled"] = [optimizer_state(optimizer, model) for optimizer in optimizers]
    return state


def _load_optimizers(model: Model, path: str) -> None:
    require_optimizer_file(path)
    source = f"The optimizer file '{path}'"
    state = read_file(path, "optimizer file", "save_model(model, save_dir, save_optimizer=True)")
    scheduled = state.get("scheduled", ()) if isinstance(state, dict) else ()
    for optimizer, saved in pair_optimizers(model, state, scheduled, source):
        load_optimizer_state(optimizer, model, saved, source)
