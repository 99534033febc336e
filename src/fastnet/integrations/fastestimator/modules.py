"""Names in FastEstimator's modules, wherever they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from fastnet.integrations.fastestimator.stand_ins import ROOT

__all__ = ["modules", "replace"]


def modules() -> Iterator[ModuleType]:
    """List the modules of FastEstimator that are imported.

    Yields:
        Each of them, the package itself among them.
    """
    loaded: list[tuple[str, ModuleType | None]] = list(sys.modules.items())
    for name, module in loaded:
        # None stands for what must not be imported
        if module is not None and (name == ROOT or name.startswith(f"{ROOT}.")):
            yield module


def replace(pairs: list[tuple[Any, Any]], describe: Callable[[Any], str]) -> dict[str, str]:
    """Put other things in the place of some, under every name that a module has for them.

    Args:
        pairs: What to replace, and by what.
        describe: Says what stands there now.

    Returns:
        The full names that were changed, and what `describe` says of each.
    """
    others = {id(old): new for old, new in pairs}
    # One object may stand for several, each under a name of its own.
    named = {(id(old), getattr(new, "__name__", None)): new for old, new in pairs}
    changed = {}
    for module in modules():
        for name, value in list(vars(module).items()):
            if id(value) in others:
                new = named.get((id(value), name), others[id(value)])
                setattr(module, name, new)
                changed[f"{module.__name__}.{name}"] = describe(new)
    return changed
