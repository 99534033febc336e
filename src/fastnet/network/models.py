"""The models that the ops of a network hold."""

from __future__ import annotations

from typing import Any

from fastnet.schedule import get_current_items
from fastnet.types import Model
from fastnet.util import to_list

__all__ = ["collect_models"]


def collect_models(ops: list[Any]) -> list[Model]:
    """List the models that ops hold.

    Args:
        ops: Ops, and schedulers of ops; None may be among them.

    Returns:
        Each model once, in the order of the ops.
    """
    models: dict[int, Model] = {}
    for op in get_current_items(to_list(ops)):
        if hasattr(op, "get_fe_models") and not isinstance(op, type):
            models.update((id(model), model) for model in op.get_fe_models())
    return list(models.values())
