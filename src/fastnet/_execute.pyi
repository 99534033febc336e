"""Runs the active ops of a network in a loop over an array of slots."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, final

from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, Resolution
from fastnet._stamps import StampLog

DEFERRED: str
UNDO: str

class InputConversion(NamedTuple):
    tensor_type: type
    foreign: NestMap
    arrays: NestMap

@final
class KernelPlan:
    resolution: Resolution
    find_inactive_writer: Callable[[str], str | None] | None

    def __init__(
        self,
        table: KeyTable,
        specs: list[OpSpec],
        forwards: list[Callable[[Any, dict[str, Any]], Any]],
        resolution: Resolution,
        to_device: NestMap | None = None,
        detach: NestMap | None = None,
        grad_mode: tuple[Callable[[], Any], Callable[[Any], Any], Any] | None = None,
        on_failure: Iterable[Callable[[], None]] = (),
        conversion: InputConversion | None = None,
    ) -> None: ...
    @property
    def ops(self) -> tuple[Any, ...]: ...
    @property
    def flow(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]: ...
    def missing_key_error(self, batch: Mapping[str, Any]) -> KeyError | None: ...
    def run(self, batch: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]: ...
    def step(self, batch: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]: ...
    @property
    def spans(self) -> tuple[tuple[str, Any], ...]: ...

@final
class BoundPlan:
    kernel: KernelPlan
    state: dict[str, Any]

    def __init__(
        self,
        kernel: KernelPlan,
        state: dict[str, Any],
        make_context: Callable[[], AbstractContextManager[Any]] | None = None,
        context_key: str | None = None,
    ) -> None: ...
    def run(self, batch: Mapping[str, Any]) -> dict[str, Any]: ...
    def step(self, batch: Mapping[str, Any]) -> dict[str, Any]: ...
    def step_timed(
        self,
        batch: Mapping[str, Any],
        log: StampLog,
        first: int = 0,
        before: Callable[[int], None] | None = None,
        after: Callable[[int], None] | None = None,
        context_row: int = 0,
    ) -> dict[str, Any]: ...

def run_deferred(deferred: dict[str, list[Callable[[], Any]]]) -> int: ...
def clean_up(
    state: dict[str, Any], functions: Sequence[Callable[[], None]], error: BaseException
) -> None: ...
def get_inputs_by_op(op: object, store: Mapping[str, Any], copy_on_write: bool = False) -> Any: ...
def split_outputs(
    op: object, result: object, keys: Sequence[str], source: str = "forward"
) -> tuple[Any, ...]: ...
def write_outputs_by_op(
    op: object, store: MutableMapping[str, Any], outputs: object, index: int | None = None
) -> None: ...
