"""What a step reads, moves and returns: keys as small ints, key sets as bitsets."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

class KeyTable:
    """The keys of one network, each with a small id."""

    def __init__(self) -> None: ...
    def intern(self, key: str) -> int: ...
    def name(self, key_id: int) -> str: ...
    def __len__(self) -> int: ...

class KeySet:
    """A set of keys of one table, a bit for each."""

    table: KeyTable

    def __init__(self, table: KeyTable, keys: Iterable[str] = ()) -> None: ...
    def copy(self) -> KeySet: ...
    def names(self) -> set[str]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

class Spec:
    """What a network knows of one of its items before it is opened."""

    item: Any

    def __init__(self, item: object) -> None: ...
    def runs_in(self, mode: str, ds_id: str | None) -> bool: ...

class OpSpec(Spec):
    """An op, or a postprocessing op, with its keys interned."""

    in_list: bool
    out_list: bool
    deletes: bool
    forward: Any
    models: tuple[Any, ...]
    takes_gradients: bool

    def __init__(self, op: object, table: KeyTable, deletes: bool = False) -> None: ...
    def has_keys_as_read(self) -> bool: ...
    def is_as_read(self) -> bool: ...

class SlicerSpec(Spec):
    """A slicer with its keys interned."""

    slices: KeySet
    unslices: KeySet

    def __init__(self, slicer: object, table: KeyTable) -> None: ...
    def has_keys_as_read(self) -> bool: ...
    def is_as_read(self) -> bool: ...

class Resolution:
    """The keys of one execution plan."""

    inputs: KeySet
    device_inputs: KeySet
    outputs: KeySet
    returned: KeySet

    def __init__(
        self,
        inputs: KeySet,
        device_inputs: KeySet,
        outputs: KeySet,
        returned: KeySet | None = None,
    ) -> None: ...

def select(specs: list[Any], mode: str, ds_id: str | None) -> list[Any]: ...
def gather(
    specs: list[OpSpec],
) -> tuple[list[Any], list[Callable[..., Any]], list[Any], list[int]]: ...
def same_items(items: list[Any], snapshot: tuple[Any, ...]) -> bool: ...
def resolve(
    table: KeyTable,
    ops: list[OpSpec],
    postprocessing: list[OpSpec],
    slicers: list[SlicerSpec],
    desired: Collection[str] | None = None,
    context: str = "",
) -> Resolution: ...
