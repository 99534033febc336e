"""Names of weights, independent of the wrappers around a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastnet.backend.torch._internals import COMPILED, put_versions, versions_in

# The attribute of DataParallel and DistributedDataParallel with the model.
_WRAPPED = "module"


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of DataParallel or DistributedDataParallel, if it is wrapped."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    inner: torch.nn.Module = model.module if isinstance(model, wrappers) else model
    return inner


def innermost(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of all wrappers, including that of `torch.compile`."""
    while True:
        inner = compiled_in(model) or unwrap(model)
        if inner is model:
            return model
        model = inner


def compiled_in(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the model inside of the result of `torch.compile`, or None for other models."""
    return dict(model.named_children()).get(COMPILED)


def fit_names(state: Mapping[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Rename the weights of a state dict to those of a model, if only wrappers make a difference.

    The model itself is not wrapped, but parts of it may be.
    """
    own = list(model.state_dict())
    form: Callable[[str], str] = str if set(own) == set(state) else without_wrappers
    known = {form(name): name for name in own}
    names = {name: known.get(form(name)) for name in state}
    if len(known) < len(own) or set(names.values()) != set(own) or len(names) != len(own):
        return dict(state)
    fitted: dict[str, Any] = OrderedDict((str(names[name]), state[name]) for name in state)
    versions = versions_in(state)
    if versions is not None:
        modules = {form(name): name for name, _ in model.named_modules(remove_duplicate=False)}
        put_versions(fitted, {modules.get(form(name), name): versions[name] for name in versions})
    return fitted


def without_wrappers(name: str) -> str:
    """Return the name of a weight without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in (COMPILED, _WRAPPED))
