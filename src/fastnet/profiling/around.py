"""Several things around each op: ranges and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Around", "Nested"]


class Around(Protocol):
    """Something that is told when an op begins and ends."""

    def before(self, place: int) -> None:
        """Take note that the op of a place begins."""

    def after(self, place: int) -> None:
        """Take note that it has ended."""


class Nested:
    """Tells several of them.

    Args:
        parts: Those that are told, the outermost first.
    """

    def __init__(self, parts: Sequence[Around]) -> None:
        self._parts = tuple(parts)
        self._back = self._parts[::-1]

    def before(self, place: int) -> None:
        """Tell that an op begins.

        Args:
            place: The op's place.
        """
        for part in self._parts:
            part.before(place)

    def after(self, place: int) -> None:
        """Tell that it has ended.

        Args:
            place: The op's place.
        """
        for part in self._back:
            part.after(place)
