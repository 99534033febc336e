"""The names in FastEstimator's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from fastnet.integrations.fastestimator.stand_ins import ROOT

__all__ = ["modules", "replace"]


def modules() -> Iterator[ModuleType]:
    """Yield the imported modules of FastEstimator, including the package."""
    loaded: list[tuple[str, ModuleType | None]] = list(sys.modules.items())
    for name, module in loaded:
        # The value None blocks the import of a module.
        if module is not None and (name == ROOT or name.startswith(f"{ROOT}.")):
            yield module


def replace(pairs: list[tuple[Any, Any]], describe: Callable[[Any], str]) -> dict[str, str]:
    """Replace objects in all modules of FastEstimator, under all of their names.

    Args:
        pairs: Objects and their replacements.
        describe: Returns the name of a replacement.

    Returns:
        The full names of the replaced attributes, with the result of `describe` for each.
    """
    replacements = {id(old): new for old, new in pairs}
    # `pow` and `tensor_pow` have one replacement, so they are restored by name.
    named = {(id(old), getattr(new, "__name__", None)): new for old, new in pairs}
    changed = {}
    for module in modules():
        for name, value in list(vars(module).items()):
            if id(value) in replacements:
                new = named.get((id(value), name), replacements[id(value)])
                setattr(module, name, new)
                changed[f"{module.__name__}.{name}"] = describe(new)
    return changed
