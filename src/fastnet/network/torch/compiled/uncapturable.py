"""The exception for steps that cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence


class Uncapturable(Exception):
    """Raised where steps cannot be captured.

    Args:
        reason: The reason.
        index: The index of the op that is the reason, if it is known.
        specialized: The indices of the open lengths that are the reason, because the trace is
            specialized to their values; empty for other reasons.
    """

    def __init__(
        self, reason: str, index: int | None = None, specialized: Sequence[int] = ()
    ) -> None:
        super().__init__(reason)
        self.index = index
        self.specialized = specialized
