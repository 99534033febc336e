"""What a network, or an op around other ops, settles for an op that keeps its own settings."""

from __future__ import annotations

from typing import Any

from fastnet.types import Forward, State

__all__ = ["bind_settings", "is_overridden", "takes_gradients"]


def takes_gradients(op: Any) -> bool:
    """Return whether an op takes gradients.

    Args:
        op: The op.

    Returns:
        Whether it has something to say on keeping a graph.
    """
    return hasattr(op, "fe_retain_graph") and op.fe_retain_graph() is not None


def is_overridden(op: Any, forward: Any) -> bool:
    """Return whether an op runs something else than the forward of its class in the library.

    Args:
        op: The op.
        forward: The function that the library's class has.

    Returns:
        True if a derived class, or somebody later, has put something into its place.
    """
    return getattr(op.forward, "__func__", None) is not forward


def bind_settings(op: Any, defer: bool, retain_graph: bool) -> Forward:
    """Return an op's forward with the settings that a network has for it.

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
