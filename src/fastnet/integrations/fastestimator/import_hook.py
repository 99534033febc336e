"""Calls a function after imports of FastEstimator.

FastEstimator imports its modules lazily, and they import each other. Names that are replaced during
such an import would become base classes in the modules that are still executing, so the function is
called after the outermost import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fastnet.integrations.fastestimator.stand_ins import ROOT

__all__ = ["ImportHook"]


class ImportHook(MetaPathFinder):
    """Calls a function after each outermost import of a module of FastEstimator.

    Args:
        callback: The function.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._depth = 0

    def start(self) -> None:
        """Install the finder."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Remove the finder."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec from the other finders, with a loader that reports its execution.

        Args:
            fullname: The name of the module.
            path: The path of its package.
            target: The module, if it is reloaded.

        Returns:
            The spec, or None for modules of other packages.
        """
        if not fullname.startswith(f"{ROOT}."):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._observe(spec.loader)
                return spec
        return None

    def _observe(self, loader: Any) -> None:
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            self._depth += 1
            try:
                run(module)
            finally:
                self._depth -= 1
            if not self._depth and self in sys.meta_path:
                self._callback()

        loader.exec_module = exec_module
