"""Walks the data reachable from some objects, and compares it with what an earlier walk found."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

ABSENT: object

class Kind(IntEnum):
    """The kind of a node, which decides the values that it has."""

    LINK = 0
    OBJECT = 1
    CLASS = 2
    DICT = 3
    LIST = 4
    SET = 5
    SEQUENCE = 6
    SLOTS = 7
    FUNCTION = 8
    GLOBAL = 9
    FIXED = 10
    WEAK = 11
    STATE = 12

class BaseSnapshot:
    """The walk and the comparison; `fastnet.guards.Snapshot` adds the rules and the paths."""

    count: int
    _stopped_at: int
    def __init__(
        self,
        rules: Any,
        roots: list[Any],
        skip: dict[int, tuple[str, ...]],
        shallow: bool,
        max_entries: int,
    ) -> None: ...
    def is_unchanged(self) -> bool: ...
    def next_change(self, start: int) -> int: ...
    def _difference_in(self, index: int) -> tuple[Sequence[Any], int] | None: ...
    def node(self, index: int) -> tuple[Kind, Any, int, int, Any]: ...

class MemberGuard:
    """Detects changes of attributes and method results, read through their C descriptors."""

    def __init__(
        self, owners: Iterable[Any], attributes: tuple[str, ...] = (), methods: tuple[str, ...] = ()
    ) -> None: ...
    def are_unchanged(self) -> bool: ...

def is_mutable(cls: type) -> bool: ...
def referent_of(reference: Any) -> Any: ...
