"""Detection of installed packages."""

from __future__ import annotations

__all__ = ["is_installed"]


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(file.replace("\\", "/").split("/"))
