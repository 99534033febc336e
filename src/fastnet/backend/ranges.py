"""Ranges in the profiles of a framework: one around each op, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

__all__ = ["OpRanges"]


class OpRanges:
    """Names ops to the profiler of a framework.

    Args:
        names: Gives the name of each op. It is not called before there is a range to name: most
            openings of a network have none.
        make_range: Makes a range of a name, to be entered.
        is_on: Tells whether that profiler is on.

    Attributes:
        active: The same function: each step that is measured asks it.
    """

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        make_range: Callable[[str], AbstractContextManager[Any]],
        is_on: Callable[[], bool],
    ) -> None:
        self._give_names = names
        self._make_range = make_range
        self.active = is_on
        self._open: list[AbstractContextManager[Any]] = []

    @cached_property
    def _names(self) -> Sequence[str]:
        return self._give_names()

    def before(self, place: int) -> None:
        """Begin the range of an op.

        Args:
            place: The op's place.
        """
        opened = self._make_range(self._names[place])
        opened.__enter__()
        self._open.append(opened)

    def after(self, place: int) -> None:
        """End it.

        Args:
            place: The op's place.
        """
        self._open.pop().__exit__(None, None, None)
