"""The processes that a network trains with, as its framework knows them."""

from __future__ import annotations

from typing import Any

from fastnet.frameworks import MissingPart, part_of

__all__ = ["processes_of"]


def processes_of(framework: str) -> Any:
    """Find what a framework has for the processes that train together now.

    Args:
        framework: The framework's name.

    Returns:
        Its module; None where there is only one process.
    """
    try:
        part = part_of(framework, "processes")
    except MissingPart:
        return None
    return part if part.world_size() > 1 else None
