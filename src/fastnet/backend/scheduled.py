"""The optimizers of a model: all of its scheduler's, and the current one."""

from __future__ import annotations

from typing import Any

from fastnet.backend.facts import fact, holder_of, name_of
from fastnet.types import Model, is_scheduler

__all__ = [
    "current_place",
    "every_optimizer_of",
    "nowhere_to_defer",
    "optimizer_of",
    "optimizers_of",
]


def optimizers_of(model: Model) -> list[Any]:
    """List the optimizers of a model, each once, in the order of its scheduler."""
    source = fact(model, "optimizer")
    found: dict[int, Any] = {}
    for one in source.get_all_values() if is_scheduler(source) else [source]:
        if one is not None:
            found.setdefault(id(one), one)
    return list(found.values())


def every_optimizer_of(model: Model) -> list[Any]:
    """List the optimizers of a model, and the current one if it was assigned by the user."""
    current = fact(model, "current_optimizer")
    optimizers = optimizers_of(model)
    is_other = current is not None and all(one is not current for one in optimizers)
    return [*optimizers, current] if is_other else optimizers


def current_place(model: Model) -> int | None:
    """Return the index of the current optimizer in `optimizers_of`, or None."""
    current = fact(model, "current_optimizer")
    places = (place for place, one in enumerate(optimizers_of(model)) if one is current)
    return next(places, None)


def optimizer_of(model: Model) -> Any:
    """Return the current optimizer of a model.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If it has no optimizer now.
    """
    holder = holder_of(model, "current_optimizer")
    if not hasattr(holder, "current_optimizer"):
        raise AssertionError(
            f"{type(model).__name__} has no current_optimizer. Make the model with fastnet.build."
        )
    if holder.current_optimizer is None:
        raise ValueError(
            f"Model '{name_of(model)}' is to be updated, but it has no optimizer in this epoch. "
            "Give fastnet.build an optimizer_fn (a scheduler's None means none), or let no "
            "UpdateOp run."
        )
    return holder.current_optimizer


def nowhere_to_defer(model: Model) -> ValueError:
    """Return the error of a deferred update without a dict to defer it into."""
    return ValueError(
        f"An update of model '{name_of(model)}' is to be deferred, but no dict to defer it into "
        "was given. Pass `deferred`, or defer=False."
    )
