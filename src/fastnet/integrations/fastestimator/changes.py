"""What was put in the place of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["Changes"]


class Changes(Mapping[str, str]):
    """Names that were changed, each with what stands there now; printed one a line.

    Args:
        changes: The changes, by full names: ``fastestimator.network.build`` and so on.
        summary: One line that says what they are.

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
        lines = [f"  {name} -> {what}" for name, what in self._changes.items()]
        return "\n".join([self.summary, *lines])
