"""The exception for steps that cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence


class Uncapturable(Exception):
    """Raised where steps cannot be captured.

    Args:
        reason: The reason.
        index: The index of the op, if it is because of one.
        decided: The indices of open lengths for which the ops need one value, if it is because of
            these.
    """

    def __init__(self, reason: str, index: int | None = None, decided: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.index = index
        self.decided = decided
