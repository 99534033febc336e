"""What a network takes from its ops: their models, and their forwards with settings bound."""

from __future__ import annotations

from typing import Any

from fastnet.schedule import get_current_items
from fastnet.types import Forward, Model, State
from fastnet.util import to_list

__all__ = ["bind_settings", "collect_models"]


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


def bind_settings(op: Any, defer: bool, retain_graph: bool) -> Forward:
    """Give an op's forward with the settings that a network has for it.

    Args:
        op: The op; it keeps its own settings.
        defer: Whether its update is to wait until after the last op.
        retain_graph: Whether a later op takes gradients of the same graph.

    Returns:
        What to call instead of its `forward`.
    """
    bound: Forward | None = op.bind(defer, retain_graph) if hasattr(op, "bind") else None
    if bound is not None:
        return bound

    def forward(data: Any, state: State) -> Any:
        # it can only be told by setting it, for just this call
        deferred = getattr(op, "defer", None)
        retained = op.fe_retain_graph() if hasattr(op, "fe_retain_graph") else None
        try:
            if deferred is not None and defer:
                op.defer = True
            if retained is not None:
                op.fe_retain_graph(retain_graph)
            return op.forward(data, state)
        finally:
            if deferred is not None and defer:
                op.defer = deferred
            if retained is not None:
                op.fe_retain_graph(retained)

    return forward
