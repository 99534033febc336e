"""Weights of torch models, from files."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from fastnet.backend.files import find_file, reading, refuse_checkpoint, require_content
from fastnet.backend.torch._internals import COMPILED, put_versions, versions_in
from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.wrappers import unwrap_all


def load_weights(
    model: torch.nn.Module, weights: Mapping[str, Any], source: str, exact: bool = False
) -> None:
    """Fill a model with full weights by name; raise a ValueError if they do not fit.

    torch converts weights of another dtype, which is an error if `exact` is true.
    """
    inner = unwrap_all(model)
    present = inner.state_dict()
    fitted = fit_names(weights, inner)
    try:
        for name, value in fitted.items():
            _require_fit(name, value, present.get(name), exact)
        shards = OrderedDict(
            (name, shard_like(value, present.get(name))) for name, value in fitted.items()
        )
        put_versions(shards, versions_in(fitted))
        inner.load_state_dict(shards)
    except Exception as error:  # A module may load its weights in its own way.
        raise ValueError(
            f"{source} does not fit the model, {type(inner).__name__}: {error}"
        ) from error


def _require_fit(name: str, value: Any, present: Any, exact: bool) -> None:
    """Raise an error for weights of a dtype that does not fit."""
    if not isinstance(present, torch.Tensor) or not isinstance(value, torch.Tensor):
        return
    if value.dtype != present.dtype and (exact or not torch.can_cast(value.dtype, present.dtype)):
        raise ValueError(
            f"'{name}' has the dtype {value.dtype}, where the model's is {present.dtype}"
        )


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the weights in a file by name, on the CPU; raise a ValueError if it has none."""
    name = find_file(path, "weights file")
    weights = read_file(name, "weights file", "torch.save(model.state_dict(), path)")
    if not isinstance(weights, dict) or not all(isinstance(key, str) for key in weights):
        held = "a dict without names" if isinstance(weights, dict) else type(weights).__name__
        raise ValueError(
            f"The weights file '{name}' holds {held}, not weights by name. Save "
            "model.state_dict(), not the model or a part of it."
        )
    return weights


def read_file(name: str, kind: str, writer: str) -> Any:
    """Return the tensors and plain values in a file of `torch.save`; execute nothing."""
    advice = f"Save it again with {writer}."
    refuse_checkpoint(name, kind)
    with reading(f"The {kind} '{name}'", "is damaged, or holds more than tensors", advice):
        require_content(name)
        if zipfile.is_zipfile(name):
            with zipfile.ZipFile(name) as archive:
                # torch.load does not compare the checksums.
                damaged = archive.testzip()
            if damaged is not None:
                raise ValueError(f"the checksum of '{damaged}' differs")
        try:
            return torch.load(name, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError("it holds objects that would have to be executed") from error


def fit_names(state: Mapping[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Rename the weights of a state dict to those of a model, if only wrappers make a difference.

    The model itself is not wrapped, but parts of it may be.
    """
    model_names = list(model.state_dict())
    names = match_names(state, model_names)
    if names is None:
        return dict(state)
    fitted: dict[str, Any] = OrderedDict((names[name], state[name]) for name in state)
    versions = versions_in(state)
    if versions is not None:
        is_same = set(model_names) == set(state)
        simplify: Callable[[str], str] = str if is_same else without_wrappers
        modules = {simplify(name): name for name, _ in model.named_modules(remove_duplicate=False)}
        put_versions(
            fitted, {modules.get(simplify(name), name): versions[name] for name in versions}
        )
    return fitted


def match_names(names: Collection[str], model_names: Collection[str]) -> dict[str, str] | None:
    """Pair names with those of a model, up to wrappers; return None if they do not match."""
    if set(names) == set(model_names):
        return {name: name for name in names}
    known = {without_wrappers(name): name for name in model_names}
    if len(known) < len(model_names):
        return None  # Without wrappers, two weights of the model have the same name.
    matched = {name: known.get(without_wrappers(name), "") for name in names}
    if set(matched.values()) != set(model_names) or len(matched) != len(model_names):
        return None
    return matched


def without_wrappers(name: str) -> str:
    """Return the name of a weight without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in (COMPILED, "module"))
