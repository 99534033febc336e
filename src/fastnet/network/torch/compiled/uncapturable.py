"""The exception for steps that cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence


class Uncapturable(Exception):
    """Raised where steps cannot be captured.

    Args:
        reason: The reason.
        index: The index of the op, if it is because of one.
        specialized: The indices of open lengths to whose values the trace is specialized, if it is
            because of these.
    """

    def __init__(
        self, reason: str, index: int | None = None, specialized: Sequence[int] = ()
    ) -> None:
        super().__init__(reason)
        self.index = index
        self.specialized = specialized
