"""The names that were replaced, and their replacements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["Changes"]


class Changes(Mapping[str, str]):
    """A mapping of replaced names to their replacements, which prints one per line.

    Args:
        changes: The full names, such as ``fastestimator.network.build``, and their replacements.
        summary: The text above the names when the mapping is printed.

    >>> print(Changes({"a.b": "c.d"}, "1 name was changed"))
    1 name was changed
      a.b -> c.d
    """

    def __init__(self, changes: Mapping[str, str], summary: str) -> None:
        self._changes = dict(sorted(changes.items()))
        self.summary = summary

    def __getitem__(self, name: str) -> str:
        return self._changes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def __str__(self) -> str:
        lines = [f"  {name} -> {replacement}" for name, replacement in self._changes.items()]
        return "\n".join([self.summary, *lines])
