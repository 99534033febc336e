"""Ranges around ops in the profiles of a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any


class OpRanges:
    """Marks ops by name in the profiles of a framework while its profiler is `active`."""

    def __init__(
        self,
        names: Sequence[str],
        make_range: Callable[[str], AbstractContextManager[Any]],
        active: Callable[[], bool],
    ) -> None:
        self._names = names
        self._make_range = make_range
        self.active = active
        self._open: list[AbstractContextManager[Any]] = []

    def before(self, index: int) -> None:
        """Open the range of an op."""
        opened = self._make_range(self._names[index])
        opened.__enter__()
        self._open.append(opened)

    def after(self, index: int) -> None:
        """Close the range of an op."""
        self._open.pop().__exit__(None, None, None)
