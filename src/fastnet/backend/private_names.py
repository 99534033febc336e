"""Looks up names of a framework that are outside its public API.

The names are in `torch/_internals.py`, `tf/_internals.py` and `tf/_keras_internals.py`, and nowhere
else. Each has a fallback in public names, which is used where a version of the framework has no
such name, or has something else under it; with ``FASTNET_PUBLIC_ONLY=1`` in the environment only
fallbacks are used.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from typing import Any

__all__ = ["PUBLIC_ONLY", "look_up", "read"]

PUBLIC_ONLY = os.environ.get("FASTNET_PUBLIC_ONLY") == "1"
"""Whether no private name is to be used."""


def look_up(path: str, fits: Callable[[Any], bool]) -> Any:
    """Find what a private name of a framework stands for.

    Args:
        path: The name, with the modules that lead to it.
        fits: Tells whether what is found takes the arguments that it will be given, or is of the
            kind that is expected. It may raise where it does not.

    Returns:
        What was found; None if there is no such name, if it does not fit, or if only public names
        are to be used. No error is raised.
    """
    if PUBLIC_ONLY:
        return None
    try:
        found = pkgutil.resolve_name(path)
        return found if fits(found) else None
    except Exception:  # whatever another version does when it is asked
        return None


def read(owner: Any, name: str, default: Any = None) -> Any:
    """Read a private attribute of an object.

    Args:
        owner: The object.
        name: The attribute.
        default: What to return where there is none, or where only public names are to be used.

    Returns:
        Its value, or the default.
    """
    return default if PUBLIC_ONLY else getattr(owner, name, default)
