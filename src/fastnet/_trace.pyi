"""Run what was traced: match a batch with its forms, call it with flat tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

@final
class Slot:
    """A place in a form where a tensor stands."""

    type: Any
    shape: tuple[int | None, ...] | None

    def __init__(self, type: Any = None, shape: tuple[int | None, ...] | None = None) -> None: ...

@final
class Parts:
    """A place in a form where something stands that is made of several tensors."""

    kind: Any
    slots: list[Slot]

    def __init__(self, kind: Any, slots: list[Slot]) -> None: ...

@final
class TensorKind:
    """How to read the tensors of a framework."""

    cls: type
    type_of: Callable[[Any], Any]
    shape_of: Callable[[Any], tuple[int | None, ...] | None]
    convert: Callable[[Any], Any]
    split: Callable[[Any], tuple[Any, list[Any]] | None]
    join: Callable[[Any, list[Any]], Any]

    def __init__(
        self,
        cls: type,
        type_of: Callable[[Any], Any],
        shape_of: Callable[[Any], tuple[int | None, ...] | None],
        convert: Callable[[Any], Any],
        split: Callable[[Any], tuple[Any, list[Any]] | None],
        join: Callable[[Any, list[Any]], Any],
    ) -> None: ...
    def form_of(self, value: Any) -> Any: ...
    def tensors_of(self, value: Any, form: Any) -> list[Any] | None: ...
    def fill(self, form: Any, tensors: Iterator[Any]) -> Any: ...

@final
class Trace:
    """A function that was traced for values of certain forms."""

    call: Callable[[list[Any]], Sequence[Any]]
    inputs: list[Any]
    outputs: list[tuple[str, Any]]

    def __init__(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: list[Any],
        outputs: dict[str, Any],
    ) -> None: ...

@final
class TracedStep:
    """Runs steps through traced functions, and has one traced where none fits."""

    keys: list[str]
    kind: TensorKind
    context: list[str]
    traces: list[Trace]

    def __init__(
        self,
        keys: Iterable[str],
        kind: TensorKind,
        trace: Callable[[list[Any]], Trace],
        context: Iterable[str] = (),
    ) -> None: ...
    def step(self, batch: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]: ...
    def fits(self, batch: Mapping[str, Any]) -> bool: ...
