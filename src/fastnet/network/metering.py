"""Meters, which time a network while it is being measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fastnet._execute import Plan
from fastnet._stamps import StampLog
from fastnet.errors import op_name
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.types import RunStep, State

__all__ = [
    "DEFERRED",
    "Around",
    "Meter",
    "RangeMeter",
    "Ranges",
    "StepMeter",
    "op_title",
    "tells_traces",
    "titles",
]

DEFERRED = "deferred updates"

Around = Callable[[int], None] | None


class Ranges(Protocol):
    """Shows the names of ops in a framework's profiler."""

    def active(self) -> bool:
        """Return whether that profiler is on."""

    def before(self, place: int) -> None:
        """Begin the range of an op."""

    def after(self, place: int) -> None:
        """End it."""


class StepMeter(Protocol):
    """Times the steps of one opening.

    Attributes:
        log: Where each part of a step leaves a stamp when it is over.
        before: Called with the place of each op before it runs, and with the place after the last
            before deferred updates run; or None.
        after: Called with the same place when they are over, or None.
    """

    log: StampLog
    before: Around
    after: Around

    def row(self, kind: str, name: str, place: int | None = None) -> int:
        """Return the number that stamps of a part have: the same one for the same part."""

    def plan_rows(self, plan: Plan) -> int:
        """Return the first number of the stamps that a plan makes."""

    def measured(self, step: RunStep, plain: RunStep) -> RunStep:
        """Return the function that runs a step.

        Args:
            step: Runs a step, with stamps.
            plain: Runs it without any.
        """


class Meter(Protocol):
    """Times a network."""

    def found(self, mode: str, seconds: float, worked_out: bool) -> None:
        """Take down what finding a layout took."""

    def opened(self, mode: str, seconds: float) -> None:
        """Take down what opening the network took."""

    def waited(self, mode: str, seconds: float) -> None:
        """Take down how long a batch was waited for."""

    def open_step(self, layout: ExecutionPlan, state: State, ranges: Ranges | None) -> StepMeter:
        """Return the meter that takes the times of an opening's steps."""


class RangeMeter:
    """Names ops to the profiler of a framework, and keeps no times.

    Args:
        ranges: What names them.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.log = StampLog()
        self.before: Around = ranges.before
        self.after: Around = ranges.after
        self._lock = threading.Lock()

    def row(self, kind: str, name: str, place: int | None = None) -> int:
        """Return the number of all stamps."""
        return 0

    def plan_rows(self, plan: Plan) -> int:
        """Return the number of all stamps."""
        return 0

    def measured(self, step: RunStep, plain: RunStep) -> RunStep:
        """Return the function that runs a step with ranges; in another thread meanwhile without."""
        lock, log = self._lock, self.log

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not lock.acquire(blocking=False):
                return plain(batch)
            try:
                return step(batch)
            finally:
                log.keep(0)
                lock.release()

        return run


def tells_traces(meter: StepMeter, before: int) -> Callable[[str, float, float], None]:
    """Return what gives tracing and compiling rows of their own, told when they are just over.

    Args:
        meter: What takes the times.
        before: The row of what ran before that in the same step.

    Returns:
        A function that takes why it was done, and the seconds of both: of compiling 0 where nothing
        was compiled.
    """
    log = meter.log

    def told(reason: str, seconds: float, compiling: float) -> None:
        over = time.perf_counter()
        log.stamp_at(before, over - seconds - compiling)
        log.stamp_at(meter.row("trace", f"trace: {reason}"), over - compiling)
        if compiling:
            log.stamp_at(meter.row("trace", f"compile: {reason}"), over)

    return told


def op_title(op: Any) -> str:
    """Name an op by its class (and the function that it calls) and its keys, as profiles do.

    Args:
        op: An op.

    Returns:
        For example ``"ModelOp(x) -> y_pred"``, or ``"LambdaOp[standardise](x) -> y"``.
    """
    outputs = ", ".join(map(str, getattr(op, "outputs", ())))
    title = f"{op_name(op)}({', '.join(map(str, getattr(op, 'inputs', ())))})"
    return f"{title} -> {outputs}" if outputs else title


def titles(ops: Sequence[Any]) -> list[str]:
    """Name what ranges and events are around: each op, and what the ops have put off.

    Args:
        ops: The ops in force.
    """
    return [*map(op_title, ops), DEFERRED]
