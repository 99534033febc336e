"""Weights of torch models, from and to files."""

from __future__ import annotations

import copy
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fastnet.backend.files import no_weights_file
from fastnet.backend.torch._internals import put_versions, versions_in
from fastnet.backend.torch.claims import require_claims
from fastnet.backend.torch.names import fit_names, innermost
from fastnet.backend.torch.sharded import gather_no_more
from fastnet.backend.torch.wholes import own_part, part_of_whole
from fastnet.errors import shorten

__all__ = ["fill", "fit_weights", "kept_weights", "load_weights", "read_file", "read_state"]


def load_weights(model: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Fill a model with the weights of a file. If that fails the model stays as it was.

    Args:
        model: The model; of a parallel wrapper or a compiled model what is inside is filled.
        path: A file that `torch.save(model.state_dict(), path)` has written, whatever the model
            was wrapped in then. Nothing in it is executed.

    Raises:
        ValueError: If the file does not exist, is not a weights file or is damaged, or holds the
            weights of another model.
    """
    state = fit_weights(model, read_state(path), f"The weights file '{os.fspath(path)}'")
    with kept_weights(model):
        fill(model, state, f"The weights file '{os.fspath(path)}'")


def fit_weights(model: torch.nn.Module, state: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check that weights are a model's.

    Args:
        model: The model, wrapped or not.
        state: Weights by name, from a model that was wrapped or not.
        source: Where they are from, for the error's text.

    Returns:
        The weights by the names that the model itself has for them.

    Raises:
        ValueError: If they are of another model.
    """
    inner = innermost(model)
    own = inner.state_dict()
    state = fit_names(state, inner)
    complaints = []
    missing = [key for key in own if key not in state]
    if missing:
        complaints.append(f"lacks {_some(missing)}")
    unknown = [key for key in state if key not in own]
    if unknown:
        complaints.append(f"has {_some(unknown)}, which the model has not")
    for key, value in state.items():
        if isinstance(own.get(key), torch.Tensor):
            complaint = _complaint(key, value, own[key])
            if complaint:
                complaints.append(complaint)
    if complaints:
        raise ValueError(
            f"{source} is of another model than {type(inner).__name__}: it "
            f"{'; it '.join(complaints[:4])}. Load it into the model that it was saved from."
        )
    return state


def fill(model: torch.nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Fill a model with weights.

    Args:
        model: The model, wrapped or not.
        state: What `fit_weights` gave for it.
        source: Where the weights are from, for the error's text.

    Raises:
        ValueError: If the model does not take them; a part of them may be in it then.
    """
    inner = innermost(model)
    own = inner.state_dict()
    parts = OrderedDict((key, part_of_whole(one, own.get(key))) for key, one in state.items())
    put_versions(parts, versions_in(state))
    try:
        inner.load_state_dict(parts)
    except Exception as error:
        # a module may have a way of its own to take weights
        raise ValueError(
            f"{source} cannot be loaded into {type(inner).__name__}: {error!r}. Load it into the "
            "model that it was saved from."
        ) from error


@contextmanager
def kept_weights(model: torch.nn.Module) -> Iterator[None]:
    """Restore the weights of a model if something fails meanwhile.

    Args:
        model: The model, wrapped or not.
    """
    inner = innermost(model)
    gather_no_more(inner)
    tensors = [
        (tensor, own_part(tensor).detach().to("cpu", copy=True))
        for tensor in (*inner.parameters(), *inner.buffers())
        if not torch.nn.parameter.is_lazy(tensor)
    ]
    own_way: Any = torch.nn.Module.get_extra_state
    others = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in inner.modules()
        if type(module).get_extra_state is not own_way
    ]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in tensors:
                own_part(tensor).copy_(value)
        for module, extra in others:
            module.set_extra_state(extra)
        raise


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
            f"A weights path is a string, or None for no weights, not {shorten(path)} of type "
            f"{type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise no_weights_file(name, "Check the path, or leave weights_path out.")
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
        ValueError: If it is damaged, claims more than it has, or holds what would have to be
            executed.
    """
    try:
        require_claims(name)
        return torch.load(name, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"The {kind} '{name}' is damaged, or holds more than {content}, which is not "
            f"executed. Save it anew with {writer}."
        ) from error
    except Exception as error:  # a damaged file raises errors of many types
        raise ValueError(
            f"The {kind} '{name}' is damaged: it cannot be read ({error!r}). Save it anew "
            f"with {writer}."
        ) from error


def _complaint(key: str, value: Any, own: torch.Tensor) -> str | None:
    """Say what is wrong with a weight: torch would find it out with half of the others in place."""
    if not isinstance(value, torch.Tensor):
        return f"has {type(value).__name__} as '{key}', which is no tensor"
    if not torch.nn.parameter.is_lazy(own) and value.shape != own.shape:
        return f"has '{key}' of shape {tuple(value.shape)} where the model's is {tuple(own.shape)}"
    if not torch.can_cast(value.dtype, own.dtype) or value.is_quantized != own.is_quantized:
        return f"has '{key}' of type {value.dtype}, where the model's is {own.dtype}"
    if value.layout != own.layout or (value.is_meta and not own.is_meta):
        given, wanted = ("meta" if one.is_meta else one.layout for one in (value, own))
        return f"has '{key}' as a tensor of the kind {given}, where the model's is {wanted}"
    return None


def _some(keys: list[str]) -> str:
    shown = ", ".join(f"'{key}'" for key in keys[:3])
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"
