"""The exception for steps that cannot be captured."""

from __future__ import annotations


class Uncapturable(Exception):
    """Raised where steps cannot be captured; its text is the reason."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index
