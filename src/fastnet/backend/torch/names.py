"""Names of weights, independent of the wrappers around a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from fastnet.backend.torch._internals import COMPILED, put_versions, versions_in

_Form: TypeAlias = Callable[[str], str]

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
    outer = 0
    while state and all(_is_wrapped(name, outer) for name in state):
        outer += 1
    forms: list[tuple[_Form, _Form]] = [(partial(_without, outer=n), str) for n in range(outer + 1)]
    for form, own_form in (*forms, (_without_any, _without_any)):
        known = {own_form(name): name for name in own}
        if len(known) == len(own) and _are(known, [form(name) for name in state]):
            break
    else:
        return dict(state)
    fitted: dict[str, Any] = OrderedDict(
        (known[form(name)], value) for name, value in state.items()
    )
    versions = versions_in(state)
    if versions is not None:
        modules = {own_form(name): name for name, _ in model.named_modules(remove_duplicate=False)}
        named = {modules.get(form(name), name): version for name, version in versions.items()}
        put_versions(fitted, named)
    return fitted


def _are(known: Collection[str], names: list[str]) -> bool:
    return len(set(names)) == len(names) and set(names) == set(known)


def _is_wrapped(name: str, outer: int) -> bool:
    parts = name.split(".")
    return len(parts) > outer + 1 and parts[outer] in (COMPILED, _WRAPPED)


def _without(name: str, outer: int) -> str:
    return ".".join(name.split(".")[outer:])


def _without_any(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in (COMPILED, _WRAPPED))
