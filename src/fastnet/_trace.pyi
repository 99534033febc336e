"""Matches batches with the forms of traces and programs, which take a flat list of tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from fastnet.guards import Snapshot

@final
class TensorSpec:
    type: Any
    shape: tuple[int | None, ...] | None

    def __init__(self, type: Any = None, shape: tuple[int | None, ...] | None = None) -> None: ...

@final
class CompositeSpec:
    kind: Any
    specs: tuple[TensorSpec, ...]

    def __init__(self, kind: Any, specs: Iterable[TensorSpec]) -> None: ...

@final
class WithAttributes:
    form: Any
    state: tuple[dict[str, Any], Snapshot]

    def __init__(self, form: Any, state: tuple[dict[str, Any], Snapshot]) -> None: ...

@final
class GuardedReaders:
    def __init__(
        self, condition: Callable[[Any], Any], expected: Any, *readers: Callable[[Any], Any]
    ) -> None: ...
    def __call__(self, value: Any) -> tuple[Any, ...]: ...

@final
class TensorAdapter:
    cls: type
    type_of: Callable[[Any], Any]
    shape_of: Callable[[Any], tuple[int | None, ...] | None]
    convert: Callable[[Any], Any]
    flatten: Callable[[Any], tuple[Any, Sequence[Any]] | None]
    pack: Callable[[Any, list[Any]], Any]
    type_of_others: Callable[[Any], Any]
    shape_of_others: Callable[[Any], tuple[int | None, ...] | None]

    def __init__(
        self,
        cls: type,
        type_of: Callable[[Any], Any],
        shape_of: Callable[[Any], tuple[int | None, ...] | None],
        convert: Callable[[Any], Any],
        flatten: Callable[[Any], tuple[Any, Sequence[Any]] | None],
        pack: Callable[[Any, list[Any]], Any],
        others: tuple[Callable[[Any], Any], Callable[[Any], tuple[int | None, ...] | None]]
        | None = None,
    ) -> None: ...
    def form_of(self, value: Any) -> Any: ...
    def matches(self, form: Any, value: Any) -> bool: ...

FORMS: TensorAdapter

def map_form(form: Any, fn: Callable[[Any], Any], as_form: bool = False) -> Any: ...

@final
class Signature:
    keys: tuple[str, ...]
    adapter: TensorAdapter

    def __init__(
        self,
        keys: Iterable[str],
        adapter: TensorAdapter,
        inputs: Iterable[Any],
        outputs: dict[str, Any],
    ) -> None: ...
    @property
    def inputs(self) -> list[Any]: ...
    @property
    def outputs(self) -> dict[str, Any]: ...
    def match(self, batch: Mapping[str, Any]) -> list[Any] | None: ...
    def merge(self, results: Iterable[Any], batch: Mapping[str, Any]) -> dict[str, Any]: ...
