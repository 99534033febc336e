"""What ops that hold a model ask of it."""

from __future__ import annotations

from fastnet.backend.facts import is_built, name_of
from fastnet.backend.framework import framework_of
from fastnet.types import Model

__all__ = ["require_built", "require_framework"]


def require_built(op: str, model: Model) -> None:
    """Refuse a model that `build` has not made ready.

    Args:
        op: The name of the op's class.
        model: The model.

    Raises:
        AssertionError: If it was not built.
    """
    if not is_built(model):
        raise AssertionError(
            f"{op} takes a model that fastnet.build has made ready, but this "
            f"{type(model).__name__} is not. Pass it through fastnet.build first."
        )


def require_framework(op: str, model: Model, framework: str) -> None:
    """Refuse a model that a network of a framework cannot run.

    Args:
        op: The name of the op's class.
        model: The model.
        framework: The network's framework.

    Raises:
        ValueError: If the model is of another.
    """
    own = framework_of(model)
    if own != framework:
        name = name_of(model)
        raise ValueError(
            f"{op} of '{name}' holds a model of framework {own!r}, but its network runs on "
            f"{framework!r}. Put models of one framework into a network."
        )
