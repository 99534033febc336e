"""Something to do as soon as FastEstimator has been imported.

It imports its modules when they are first needed, and they import each other. What is swapped while
one of them is in the middle of that would get into the classes that it defines; so this waits until
the outermost of them is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fastnet.integrations.fastestimator.stand_ins import ROOT

__all__ = ["Waiting"]


class Waiting(MetaPathFinder):
    """Calls a function after each import of FastEstimator's modules, when all of them are whole.

    Args:
        then: What to call.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._depth = 0

    def start(self) -> None:
        """Look out for imports from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Look no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as it would be found anyway, and have its import reported.

        Args:
            fullname: The module's name.
            path: Where its package is.
            target: The module, if it is imported again.

        Returns:
            What the other finders find; None for what is not FastEstimator's.
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
                self._then()

        loader.exec_module = exec_module
