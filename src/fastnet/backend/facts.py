"""What fastnet knows of a model: attributes of it, or beside it where a name is the user's."""

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
# on the model, so that a copy of the model has it too
_SLOT = "_fastnet_beside"


class Beside:
    """What is known of a model under names that the model itself uses for something else.

    Args:
        taken: These names.
    """

    def __init__(self, taken: frozenset[str]) -> None:
        self.taken = taken


def reserve(model: Model, is_free: Callable[[str], bool] = lambda name: False) -> None:
    """Find out which names a model uses itself, before anything is written to it.

    What is found once holds for good: `holder_of` gives the same object each time.

    Args:
        model: The model; one that was built before stays as it is.
        is_free: Given a name that the model uses, tells whether it is there for just what fastnet
            writes to it.
    """
    if _beside(model) is not None or all(name in model.__dict__ for name in _OF_BUILD):
        return
    taken = frozenset(name for name in _NAMES if _uses(model, name) and not is_free(name))
    # past a `__setattr__` that would make something of it
    model.__dict__[_SLOT] = Beside(taken)


def holder_of(model: Model, name: str) -> Any:
    """Find the object that has what fastnet knows of a model.

    Args:
        model: The model.
        name: The attribute.

    Returns:
        The model, or what is beside it; the same each time, once the model is built.
    """
    beside = _beside(model)
    return model if beside is None or name not in beside.taken else beside


def taken_names(model: Model) -> frozenset[str]:
    """List the names that fastnet would write to, but that a model itself uses.

    Args:
        model: The model.

    Returns:
        The names.
    """
    beside = _beside(model)
    return frozenset() if beside is None else beside.taken


def fact(model: Model, name: str, default: Any = None) -> Any:
    """Read what fastnet knows of a model.

    Args:
        model: The model.
        name: The attribute.
        default: What to give where it is not known.

    Returns:
        Its value.
    """
    return getattr(holder_of(model, name), name, default)


def put_fact(model: Model, name: str, value: Any) -> None:
    """Write down something about a model.

    Args:
        model: The model.
        name: The attribute.
        value: Its value.
    """
    setattr(holder_of(model, name), name, value)


def name_of(model: Model) -> str:
    """Name a model.

    Args:
        model: The model.

    Returns:
        The name that `build` gave it, or its class's.
    """
    return str(fact(model, "model_name", type(model).__name__))


def is_built(model: Model) -> bool:
    """Return whether a model was made ready by `build`, fastnet's or FastEstimator's.

    Args:
        model: The model.

    Returns:
        True if it was.
    """
    return bool(fact(model, "fe_compiled", False))


def _beside(model: Model) -> Beside | None:
    # asked for, not looked up: a wrapper that hands attributes through has what it wraps has
    found = getattr(model, _SLOT, None)
    return found if isinstance(found, Beside) else None


def _uses(model: Model, name: str) -> bool:
    # a property may be there and raise, and a module of torch has its parts in tables of its own
    nothing = object()
    return inspect.getattr_static(model, name, nothing) is not nothing or hasattr(model, name)
