"""Whether dicts, lists and classes hold the objects that they held."""

from typing import Any, final

@final
class ClassAttributes:
    """Tells whether some attributes of classes are what they were."""

    def __init__(self, classes: list[Any], names: tuple[str, ...]) -> None: ...
    def are_still(self) -> bool: ...

@final
class Contents:
    """Tells whether dicts and lists hold what they held: the very same objects."""

    def __init__(
        self,
        entries: list[tuple[dict[str, Any], str]],
        tables: list[dict[Any, Any]],
        lists: list[list[Any]] | None = None,
        absent: list[tuple[dict[str, Any], set[str]]] | None = None,
        owners: list[Any] | None = None,
    ) -> None: ...
    def are_still(self) -> bool: ...
