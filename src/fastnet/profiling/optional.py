"""Packages that only some forms of a profile need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["require"]


def require(name: str, purpose: str, install: str = "fastnet[profile]") -> Any:
    """Import a package that may not be there.

    Args:
        name: The module.
        purpose: What it is for, as the beginning of a sentence.
        install: What to install it by.

    Returns:
        The module.

    Raises:
        ImportError: If it is not there; it says what to install.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{purpose} needs {package}, which is not installed. Run: pip install '{install}'"
        ) from error
