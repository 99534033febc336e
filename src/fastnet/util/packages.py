"""Whose a file is."""

from __future__ import annotations

__all__ = ["is_installed"]


def is_installed(file: str) -> bool:
    """Return whether a file is of a package that was installed.

    Args:
        file: Its path.
    """
    return not {"site-packages", "dist-packages"}.isdisjoint(file.replace("\\", "/").split("/"))
