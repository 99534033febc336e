"""Whether anything was written to: what a network remembers of its ops is one number."""

from typing import Any, final

class Watched:
    """Something whose attributes are watched. Derive from `Noticing`, which watches them."""

    def __getnewargs__(self) -> tuple[()]: ...

class Noticing(Watched):
    """Something that leaves a mark when one of its attributes is set or deleted."""

    def __setattr__(self, name: str, value: Any) -> None: ...
    def __delattr__(self, name: str) -> None: ...
    def __reduce_ex__(self, protocol: Any) -> Any: ...

def touch() -> None: ...
def writes() -> int: ...

@final
class Lookout:
    """Tells whether watched objects, and some attributes of classes, are what they were."""

    def __init__(
        self, watched: list[Any], classes: list[Any], names: tuple[str, ...], since: int
    ) -> None: ...
    def is_still(self) -> bool: ...
    def written(self) -> list[int] | None: ...
    def renew(self, since: int) -> None: ...

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
