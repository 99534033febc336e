"""Weights of torch models, from and to files."""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch

__all__ = ["load_weights", "read_file", "read_state", "unwrap"]


def load_weights(model: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Fill a model with the weights of a file.

    Args:
        model: The model; a parallel wrapper's own model is filled.
        path: A file that `torch.save(model.state_dict(), path)` has written. Nothing in it is
            executed.

    Raises:
        ValueError: If the file does not exist, is not a weights file or is damaged, or holds the
            weights of another model.
    """
    state = read_state(path)
    inner = unwrap(model)
    own = inner.state_dict()
    if state.keys() != own.keys() and all(key.startswith("module.") for key in state):
        # saved from a parallel wrapper
        state = {key.removeprefix("module."): value for key, value in state.items()}
    complaints = []
    missing = [key for key in own if key not in state]
    if missing:
        complaints.append(f"lacks {_some(missing)}")
    unknown = [key for key in state if key not in own]
    if unknown:
        complaints.append(f"has {_some(unknown)}, which the model has not")
    complaints.extend(
        f"has {type(value).__name__} as '{key}', which is no tensor"
        for key, value in state.items()
        if isinstance(own.get(key), torch.Tensor) and not isinstance(value, torch.Tensor)
    )
    complaints.extend(
        f"has '{key}' of shape {tuple(value.shape)} where the model's is {tuple(own[key].shape)}"
        for key, value in state.items()
        if isinstance(own.get(key), torch.Tensor)
        and isinstance(value, torch.Tensor)
        and value.shape != own[key].shape
    )
    if complaints:
        raise ValueError(
            f"The weights file '{os.fspath(path)}' is of another model than "
            f"{type(inner).__name__}: it {'; it '.join(complaints[:4])}. Load it into the model "
            "that it was saved from."
        )
    inner.load_state_dict(state)


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a weights file.

    Args:
        path: The file.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        ValueError: If the file does not exist, is damaged, or holds something else than weights.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A weights path is a string, or None for no weights, not {path!r} of type "
            f"{type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise ValueError(
            f"There is no weights file '{name}'. Check the path, or leave weights_path out."
        )
    state = read_file(name, "weights file", "weights", "torch.save(model.state_dict(), path)")
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        held = "a dict without names" if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"The weights file '{name}' holds {held}, not weights by name. Save "
            "model.state_dict(), not the model or a part of it."
        )
    return state


def read_file(name: str, kind: str, content: str, writer: str) -> Any:
    """Read a file that torch has written. Nothing in it is executed.

    Args:
        name: The file's path.
        kind: What the file is called, for error texts.
        content: What is to be in it.
        writer: The call that writes such a file.

    Returns:
        What it holds, its tensors on the CPU.

    Raises:
        ValueError: If it is damaged, or holds what would have to be executed.
    """
    try:
        return torch.load(name, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"The {kind} '{name}' is damaged, or holds more than {content}, which is not "
            f"executed. Save it anew with {writer}."
        ) from error
    except Exception as error:  # a damaged file fails in a dozen ways
        raise ValueError(
            f"The {kind} '{name}' is damaged: it cannot be read ({error!r}). Save it anew "
            f"with {writer}."
        ) from error


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Find the model inside a wrapper that spreads it over devices.

    Args:
        model: A model, wrapped or not.

    Returns:
        The model that was wrapped.
    """
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    inner: torch.nn.Module = model.module if isinstance(model, wrappers) else model
    return inner


def _some(keys: list[str]) -> str:
    shown = ", ".join(f"'{key}'" for key in keys[:3])
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"
