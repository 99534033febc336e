"""Detects whether dicts still hold the same objects."""

from typing import Any, final

@final
class Contents:
    """Detects whether dicts still hold the same objects."""

    def __init__(
        self,
        entries: list[tuple[dict[str, Any], str]],
        tables: list[dict[Any, Any]],
        owners: list[Any] | None = None,
    ) -> None: ...
    def are_still(self) -> bool: ...
