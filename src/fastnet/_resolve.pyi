"""Resolves which keys a step reads, moves to its device and returns."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

class KeyTable:
    def __init__(self) -> None: ...
    def intern(self, key: str) -> int: ...
    def __len__(self) -> int: ...

class KeySet:
    table: KeyTable

    def __init__(self, table: KeyTable, keys: Iterable[str] = ()) -> None: ...
    def copy(self) -> KeySet: ...
    def names(self) -> set[str]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

class Spec:
    item: Any

    def __init__(self, item: object) -> None: ...
    def runs_in(self, mode: str, ds_id: str | None) -> bool: ...

class OpSpec(Spec):
    in_list: bool
    out_list: bool
    deletes: bool
    forward: Any
    models: tuple[Any, ...]
    takes_gradients: bool

    def __init__(
        self,
        op: object,
        table: KeyTable,
        deletes: bool = False,
        read_models: Callable[[Any], tuple[tuple[Any, ...], bool]] | None = None,
    ) -> None: ...
    def is_current(self) -> bool: ...

class SlicerSpec(Spec):
    slices: KeySet
    unslices: KeySet

    def __init__(self, slicer: object, table: KeyTable) -> None: ...
    def is_current(self) -> bool: ...

class Resolution:
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
def same_entries(
    entries: list[tuple[dict[Any, Any], Any, Any]], tables: list[dict[Any, Any]], size: int
) -> bool: ...
def resolve(
    table: KeyTable,
    ops: list[OpSpec],
    postprocessing: list[OpSpec],
    slicers: list[SlicerSpec],
    desired: Collection[str] | None = None,
    context: str = "",
) -> Resolution: ...
