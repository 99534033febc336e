"""Maps functions over the leaves of nested containers."""

from collections.abc import Callable
from typing import Any, TypeVar, final

_T = TypeVar("_T")

def unless(
    leaf_type: type, name: str, value: object, fn: Callable[[Any], Any]
) -> Callable[[Any], Any]: ...
def map_leaves(data: Any, fn: Callable[[Any], Any]) -> Any: ...
def leaves_of(data: Any, builtin_only: bool = False) -> list[Any]: ...

@final
class NestMap:
    leaf_type: type
    fn: Callable[[Any], Any]
    when: str | None

    def __init__(
        self, leaf_type: type, fn: Callable[[Any], Any], when: str | None = None
    ) -> None: ...
    def __call__(self, data: _T) -> _T: ...
    def holds_leaf(self, data: Any) -> bool: ...
