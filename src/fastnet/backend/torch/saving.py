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
    complaint = None
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        complaint = "it holds something else than an optimizer's state"
    else:
        saved, own = (
            [len(group["params"]) for group in groups]
            for groups in (state["param_groups"], optimizer.param_groups)
        )
        settings, own_settings = (
            {name for group in groups for name in group}
            for groups in (state["param_groups"], optimizer.param_groups)
        )
        if saved != own:
            complaint = f"its groups have {saved} parameters, but those of the model's have {own}"
        elif settings - own_settings and own_settings - settings:
            complaint = (
                f"its settings are {sorted(settings)}, but those of the model's are "
                f"{sorted(own_settings)}"
            )
    if complaint:
        raise ValueError(
            f"The optimizer file '{path}' is not of the model's optimizer, "
            f"{type(optimizer).__name__}: {complaint}. Leave load_optimizer out, or give the model "
            "the optimizer that was saved."
        )
