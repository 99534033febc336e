"""Take a network into use and give it back, whole or not at all."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from fastnet.profiling.result import Profile

_Network = TypeVar("_Network")
_Result = TypeVar("_Result")

def enter(self: _Network) -> _Network: ...
def leave(
    self: Any,
    kind: type[BaseException] | None = None,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> None: ...
def begin(self: Any) -> Profile: ...
def end(
    self: Any,
    kind: type[BaseException] | None = None,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> None: ...
def call_within(
    context: AbstractContextManager[Any, Any], function: Callable[..., _Result], *args: Any
) -> _Result: ...
