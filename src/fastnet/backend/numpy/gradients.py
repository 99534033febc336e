"""Gradients of numpy arrays, of which there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["get_gradient", "watch"]


def get_gradient(
    target: Any,
    sources: Sequence[Any] | Any,
    higher_order: bool = False,
    tape: Any = None,
    retain_graph: bool = True,
) -> Any:
    """Refuse to differentiate."""
    raise _no_gradients(target)


def watch(tensor: Any, tape: Any = None) -> Any:
    """Refuse to make gradients possible."""
    raise _no_gradients(tensor)


def _no_gradients(value: Any) -> ValueError:
    return ValueError(
        f"numpy has no gradients, but got {type(value).__name__}. Convert it with to_tensor."
    )
