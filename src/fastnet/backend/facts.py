"""Metadata that fastnet stores of a model: on it, or beside it where a name is taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastnet.types import Model

__all__ = [
    "Beside",
    "fact",
    "holder_of",
    "is_built",
    "name_of",
    "put_fact",
    "reserve",
    "taken_names",
]

_OF_BUILD = ("current_optimizer", "fe_compiled", "mixed_precision", "model_name", "optimizer")
_NAMES = (*_OF_BUILD, "fe_alone", "fe_device", "fe_input_spec", "loss_name")
# The object beside a model is an attribute of the model, so that it is copied with the model.
_SLOT = "_fastnet_beside"


class Beside:
    """Stores metadata of a model under names that the model itself uses for something else."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.taken = taken


def reserve(model: Model, is_free: Callable[[str], bool] = lambda name: False) -> None:
    """Find the names that a model uses itself, except those that `is_free` permits to overwrite.

    A model that was built before stays as it is, so `holder_of` never changes.
    """
    if _beside(model) is not None or all(name in model.__dict__ for name in _OF_BUILD):
        return
    taken = frozenset(name for name in _NAMES if _uses(model, name) and not is_free(name))
    # Written to __dict__, because a model's own `__setattr__` might register it.
    model.__dict__[_SLOT] = Beside(taken)


def holder_of(model: Model, name: str) -> Any:
    """Return the object with an attribute of a model's metadata: the model or one beside it."""
    beside = _beside(model)
    return model if beside is None or name not in beside.taken else beside


def taken_names(model: Model) -> frozenset[str]:
    """Return the names of metadata that a model itself uses for something else."""
    beside = _beside(model)
    return frozenset() if beside is None else beside.taken


def fact(model: Model, name: str, default: Any = None) -> Any:
    """Return an attribute of a model's metadata."""
    return getattr(holder_of(model, name), name, default)


def put_fact(model: Model, name: str, value: Any) -> None:
    """Set an attribute of a model's metadata."""
    setattr(holder_of(model, name), name, value)


def name_of(model: Model) -> str:
    """Return the name that `build` gave to a model, or the name of its class."""
    return str(fact(model, "model_name", type(model).__name__))


def is_built(model: Model) -> bool:
    """Return whether a model comes from `build`, fastnet's or FastEstimator's."""
    return bool(fact(model, "fe_compiled", False))


def _beside(model: Model) -> Beside | None:
    # By getattr, so that a wrapper that forwards attributes has the metadata of what it wraps.
    found = getattr(model, _SLOT, None)
    return found if isinstance(found, Beside) else None


def _uses(model: Model, name: str) -> bool:
    # A property may raise, and a torch module keeps its parameters and submodules in tables.
    nothing = object()
    return inspect.getattr_static(model, name, nothing) is not nothing or hasattr(model, name)
