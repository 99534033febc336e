"""Interfaces of the meters that time a network, and titles of ops for profilers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fastnet._execute import Plan
from fastnet._stamps import StampLog
from fastnet.backend.ranges import OpRanges
from fastnet.errors import op_name
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.types import RunStep, State

__all__ = ["DEFERRED", "WAIT", "Around", "Meter", "StepMeter", "op_title", "titles"]

# Names of rows in profiles.
DEFERRED = "deferred updates"
WAIT = "wait for data"

Around = Callable[[int], None] | None
"""Called before or after each op with its index; the index after the last is deferred updates."""


class StepMeter:
    """Calls functions around the ops of steps, and discards all time stamps.

    It marks ops in a framework's profiler. A derived class keeps the stamps.
    """

    def __init__(self, before: Around = None, after: Around = None) -> None:
        self.log = StampLog()
        self.before = before
        self.after = after
        self._lock = threading.Lock()

    def row(self, kind: str, name: str, index: int | None = None) -> int:
        """Return the row number for the time stamps of a part of the step."""
        return 0

    def plan_rows(self, plan: Plan) -> int:
        """Return the first row number for the time stamps that a plan makes."""
        return 0

    def trace_stamper(self, before: int) -> Callable[[str, float, float], None]:
        """Return a function that stamps a trace and a compilation that have just ended.

        It takes the reason and the seconds of both; `before` is the row of the time until then.
        """

        def stamp(reason: str, seconds: float, compile_seconds: float) -> None:
            end = time.perf_counter()
            self.log.stamp_at(before, end - seconds - compile_seconds)
            self.log.stamp_at(self.row("trace", f"trace: {reason}"), end - compile_seconds)
            if compile_seconds:
                self.log.stamp_at(self.row("trace", f"compile: {reason}"), end)

        return stamp

    def measured(self, step: RunStep, plain: RunStep) -> RunStep:
        """Return a function that runs `step`, or `plain` while another thread is measured."""

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not self._lock.acquire(blocking=False):
                return plain(batch)
            try:
                return step(batch)
            finally:
                self.log.keep(0)
                self._lock.release()

        return run


class Meter(Protocol):
    """Times a network."""

    def record(self, mode: str, name: str, seconds: float) -> None:
        """Record the time that something between steps took."""

    def open_step(self, plan: ExecutionPlan, state: State, ranges: OpRanges | None) -> StepMeter:
        """Return the meter for the steps of a context."""


def op_title(op: Any) -> str:
    """Return the title of an op in profiles, such as ``"LambdaOp[standardise](x) -> y"``."""
    outputs = ", ".join(map(str, getattr(op, "outputs", ())))
    title = f"{op_name(op)}({', '.join(map(str, getattr(op, 'inputs', ())))})"
    return f"{title} -> {outputs}" if outputs else title


def titles(ops: Sequence[Any]) -> list[str]:
    """Return the titles of the active ops and of the deferred updates after them."""
    return [*map(op_title, ops), DEFERRED]
