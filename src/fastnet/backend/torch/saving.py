"""Torch models and their optimizers, to files and back."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch

from fastnet.backend.files import write_whole
from fastnet.backend.model_metadata import current_place, get_metadata, name_of, optimizers_of
from fastnet.backend.torch._internals import put_versions, versions_in
from fastnet.backend.torch.engines import engine_of
from fastnet.backend.torch.names import innermost
from fastnet.backend.torch.optimizer_state import (
    complaint_about,
    kept_optimizer,
    load_state,
    state_of,
)
from fastnet.backend.torch.processes import meet, rank, together
from fastnet.backend.torch.weights import (
    fill,
    fit_weights,
    kept_weights,
    read_file,
    read_state,
)
from fastnet.backend.torch.wholes import has_parts, whole

__all__ = ["load_model", "save_model"]

# where a file has the states of the optimizers that a scheduler chooses from
_SCHEDULED = "scheduled"


def save_model(
    model: torch.nn.Module, stem: str, save_optimizer: bool, save_architecture: bool
) -> str:
    """Save a model's weights, and its optimizers' state beside them.

    Of several processes the first one writes. All of them save a model that is sharded, at the same
    time; of any other one, and of one in DistributedDataParallel, none waits for the others.

    Args:
        model: The model; of a parallel wrapper or a compiled model what is inside is saved.
        stem: The path of the files, without what they end with.
        save_optimizer: Whether to save the optimizers' state.
        save_architecture: Not possible in torch.

    Returns:
        The path of the weights file.

    Raises:
        ValueError: If the architecture is to be saved.
    """
    if save_architecture:
        raise ValueError(
            f"The architecture of model '{name_of(model)}' cannot be saved, because torch keeps "
            "it in code. Leave save_architecture out, and make the model by the same code again."
        )
    weights = innermost(model).state_dict()
    spread = has_parts(weights)
    if spread:
        meet(f"save_model, to {stem!r}")
    contents = {f"{stem}.pt": _whole_weights(weights)}
    if save_optimizer:
        contents[f"{stem}_opt.pt"] = whole(_states_of(model))
    # without word to the others where that is not needed: many a program lets one process save
    with together("Saving a model") if spread else nullcontext():
        if rank() == 0:
            for path, content in contents.items():
                write_whole(path, partial(torch.save, content))
    return f"{stem}.pt"


def load_model(model: torch.nn.Module, path: str, load_optimizer: bool) -> None:
    """Load a model's weights, and its optimizers' state. If that fails nothing is changed.

    All processes that a model is spread over load it at the same time, each from a file that it can
    read, and none is changed if one of them fails.

    Args:
        model: The model; of a parallel wrapper or a compiled model what is inside is filled.
        path: The weights file, which is there.
        load_optimizer: Whether to load the optimizers' state.

    Raises:
        AssertionError: If there is no file of the optimizer's state.
        ValueError: If a file is damaged, or of another model or optimizer.
    """
    spread = engine_of(model) in ("ddp", "fsdp")
    if spread:
        meet("load_model")
    with ExitStack() as kept, together("Loading a model") if spread else nullcontext():
        _load(model, path, load_optimizer, kept)


def _load(model: torch.nn.Module, path: str, load_optimizer: bool, kept: ExitStack) -> None:
    source = f"The weights file '{path}'"
    if not load_optimizer:
        weights = fit_weights(model, read_state(path), source)
        kept.enter_context(kept_weights(model))
        fill(model, weights, source)
        return
    beside = f"{os.path.splitext(path)[0]}_opt.pt"
    if not os.path.isfile(beside):
        raise AssertionError(
            f"There is no optimizer file '{beside}' beside the weights. Leave load_optimizer out, "
            "or save the model with save_optimizer=True."
        )
    # read and checked before anything is changed
    states = _read_states(model, beside)
    weights = fit_weights(model, read_state(path), source)
    kept.enter_context(kept_weights(model))
    for optimizer, state in states:
        kept.enter_context(kept_optimizer(optimizer))
        load_state(optimizer, state)
    fill(model, weights, source)


def _whole_weights(weights: Any) -> Any:
    made = whole(weights)
    if made is not weights:
        put_versions(made, versions_in(weights))
    return made


def _states_of(model: Any) -> dict[str, Any]:
    """Return the state of the optimizer in force, as torch does, and with it all others'."""
    state = state_of(get_metadata(model, "current_optimizer"))
    optimizers = optimizers_of(model)
    if len(optimizers) > 1 and current_place(model) is not None:
        state[_SCHEDULED] = [state_of(one) for one in optimizers]
    return state


def _read_states(model: Any, path: str) -> list[tuple[Any, Any]]:
    """Return each optimizer that a file has a state for, and that state."""
    held = read_file(
        path,
        "optimizer file",
        "an optimizer's state",
        "save_model(model, save_dir, save_optimizer=True)",
    )
    optimizers, states = [get_metadata(model, "current_optimizer")], [held]
    scheduled = held.get(_SCHEDULED) if isinstance(held, dict) else None
    all_of_them = optimizers_of(model)
    if isinstance(scheduled, list) and len(all_of_them) > 1:
        optimizers, states = all_of_them, scheduled
        if len(optimizers) != len(states):
            _refuse(
                path,
                get_metadata(model, "current_optimizer"),
                f"it is of a schedule of {len(states)} optimizers, where the model's has "
                f"{len(optimizers)}",
            )
    for optimizer, state in zip(optimizers, states, strict=True):
        complaint = complaint_about(state, optimizer)
        if complaint:
            _refuse(path, optimizer, complaint)
    return list(zip(optimizers, states, strict=True))


def _refuse(path: str, optimizer: Any, complaint: str) -> None:
    raise ValueError(
        f"The optimizer file '{path}' is not of the model's optimizer, "
        f"{type(optimizer).__name__}: {complaint}. Leave load_optimizer out, or give the model "
        "the optimizer that was saved."
    )
