"""Torch models and their optimizers, to files and back."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from fastnet.backend.files import write_whole
from fastnet.backend.torch.gradients import model_name
from fastnet.backend.torch.weights import load_weights, read_file, unwrap

__all__ = ["load_model", "save_model"]

# what optimizers remember in the shape of a parameter; some remember other things in other shapes
_OF_PARAMETERS = ("exp_avg", "momentum_buffer", "square_avg")


def save_model(
    model: torch.nn.Module, stem: str, save_optimizer: bool, save_architecture: bool
) -> str:
    """Save a model's weights, and its optimizer's state beside them.

    Args:
        model: The model; of a parallel wrapper its own model is saved.
        stem: The path of the files, without what they end with.
        save_optimizer: Whether to save the optimizer's state.
        save_architecture: Not possible in torch.

    Returns:
        The path of the weights file.

    Raises:
        ValueError: If the architecture is to be saved.
    """
    if save_architecture:
        raise ValueError(
            f"The architecture of model '{model_name(model)}' cannot be saved, because torch keeps "
            "it in code. Leave save_architecture out, and make the model by the same code again."
        )
    path = f"{stem}.pt"
    write_whole(path, partial(torch.save, unwrap(model).state_dict()))
    if save_optimizer:
        optimizer: Any = model.current_optimizer
        write_whole(f"{stem}_opt.pt", partial(torch.save, optimizer.state_dict()))
    return path


def load_model(model: torch.nn.Module, path: str, load_optimizer: bool) -> None:
    """Load a model's weights, and its optimizer's state.

    Args:
        model: The model; a parallel wrapper's own model is filled.
        path: The weights file, which is there.
        load_optimizer: Whether to load the optimizer's state.

    Raises:
        AssertionError: If there is no file of the optimizer's state.
        ValueError: If a file is damaged, or of another model or optimizer.
    """
    if not load_optimizer:
        load_weights(model, path)
        return
    optimizer: Any = model.current_optimizer
    beside = f"{os.path.splitext(path)[0]}_opt.pt"
    if not os.path.isfile(beside):
        raise AssertionError(
            f"There is no optimizer file '{beside}' beside the weights. Leave load_optimizer out, "
            "or save the model with save_optimizer=True."
        )
    # read before anything is changed
    state = read_file(
        beside,
        "optimizer file",
        "an optimizer's state",
        "save_model(model, save_dir, save_optimizer=True)",
    )
    _require_fit(state, optimizer, beside)
    load_weights(model, path)
    optimizer.load_state_dict(state)


def _require_fit(state: Any, optimizer: torch.optim.Optimizer, path: str) -> None:
    """Check what torch does not, or does without saying which file it is about."""
    complaint = _complaint(state, optimizer)
    if complaint:
        raise ValueError(
            f"The optimizer file '{path}' is not of the model's optimizer, "
            f"{type(optimizer).__name__}: {complaint}. Leave load_optimizer out, or give the model "
            "the optimizer that was saved."
        )


def _complaint(state: Any, optimizer: torch.optim.Optimizer) -> str | None:
    if not _is_state(state):
        return "it holds something else than an optimizer's state"
    groups, own_groups = state["param_groups"], optimizer.param_groups
    counts, own_counts = ([len(group["params"]) for group in each] for each in (groups, own_groups))
    if counts != own_counts:
        return f"its groups have {counts} parameters, but those of the model's have {own_counts}"
    settings, own_settings = (
        {name for group in each for name in group} for each in (groups, own_groups)
    )
    if settings - own_settings and own_settings - settings:
        return f"its settings are {sorted(settings)}, but those of the model's are " + str(
            sorted(own_settings)
        )
    for group, own_group in zip(groups, own_groups, strict=True):
        for place, parameter in zip(group["params"], own_group["params"], strict=True):
            for name, value in state["state"].get(place, {}).items():
                if name in _OF_PARAMETERS and getattr(value, "shape", None) != parameter.shape:
                    return (
                        f"it has '{name}' of the shape {tuple(getattr(value, 'shape', ()))} for a "
                        f"parameter of the shape {tuple(parameter.shape)}"
                    )
    return None


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        return False
    memories, groups = state["state"], state["param_groups"]
    return (
        isinstance(memories, dict)
        and all(isinstance(memory, dict) for memory in memories.values())
        and isinstance(groups, list)
        and all(
            isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
        )
    )
