"""All the optimizers that a model has, one for each part of its schedule."""

from __future__ import annotations

from typing import Any

from fastnet.types import Model, is_scheduler

__all__ = ["current_place", "optimizers_of"]


def optimizers_of(model: Model) -> list[Any]:
    """List the optimizers of a model, whichever is in force.

    Args:
        model: A model from `fastnet.build`.

    Returns:
        Each optimizer once, in the order of its scheduler, if it has one.
    """
    source = model.optimizer
    found: dict[int, Any] = {}
    for one in source.get_all_values() if is_scheduler(source) else [source]:
        if one is not None:
            found.setdefault(id(one), one)
    return list(found.values())


def current_place(model: Model) -> int | None:
    """Tell which of its optimizers a model is updated by now.

    Args:
        model: A model from `fastnet.build`.

    Returns:
        Its place in `optimizers_of`, None if there is none in force or it is none of them.
    """
    places = (
        place for place, one in enumerate(optimizers_of(model)) if one is model.current_optimizer
    )
    return next(places, None)
