"""What objects were like when something was made of them, and whether they still are."""

from collections.abc import Callable
from typing import Any, Literal

class Seen:
    """An object that can change, and what it was like."""

    values: tuple[Any, ...]

    def __init__(
        self,
        owner: Any,
        kind: Literal["attributes", "mapping", "sequence", "function"] | Callable[[Any], list[Any]],
    ) -> None: ...
    @property
    def owner(self) -> Any: ...
    @property
    def cls(self) -> Any: ...
    def read(self, owner: Any) -> list[Any]: ...
    def same(self) -> bool: ...

def first_other(seen: list[Seen], start: int = 0) -> int: ...
