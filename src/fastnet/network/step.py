"""The work around the ops of a step: slicing, device synchronization, postprocessing, timing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fastnet._execute import KernelPlan
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet._stamps import StampLog
from fastnet.backend.ranges import OpRanges
from fastnet.errors import add_note, op_name
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.op.numpyop.numpyop import batch_forward, run_on_batch
from fastnet.types import RunStep, State

# Names of rows in profiles.
DEFERRED_TITLE = "deferred updates"
DATA_WAIT_TITLE = "wait for data"

OpHook = Callable[[int], None] | None
"""Called before or after each op with its index; the index after the last is deferred updates."""


class StepMeter:
    """Calls functions around the ops of steps, and discards all time stamps; a base class."""

    def __init__(self, before: OpHook = None, after: OpHook = None) -> None:
        self.log = StampLog()
        self.before = before
        self.after = after
        self._lock = threading.Lock()

    def row(self, kind: str, name: str, index: int | None = None) -> int:
        """Return the row number for the time stamps of a part of the step."""
        return 0

    def plan_rows(self, plan: KernelPlan) -> int:
        """Return the first row number for the time stamps that a plan makes."""
        return 0

    def trace_stamper(self, before: int) -> Callable[[str, float, float], None]:
        """Return a callback that stamps a finished trace and compilation.

        Args:
            before: The row for the time before them.
        """

        def stamp(reason: str, seconds: float, compile_seconds: float) -> None:
            end = time.perf_counter()
            trace_start = end - seconds - compile_seconds
            self.log.stamp_at(before, trace_start)
            self.log.stamp_at(self.row("trace", f"trace: {reason}"), end - compile_seconds)
            if compile_seconds:
                self.log.stamp_at(self.row("trace", f"compile: {reason}"), end)

        return stamp

    def measured(self, step: RunStep, unmeasured_step: RunStep) -> RunStep:
        """Return a function that runs `step`, or `unmeasured_step` while a step is measured."""

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not self._lock.acquire(blocking=False):
                return unmeasured_step(batch)
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
        """Return the meter for the steps of a session."""


def op_title(op: Any) -> str:
    """Return the title of an op in profiles, such as ``"LambdaOp[standardise](x) -> y"``."""
    outputs = ", ".join(map(str, getattr(op, "outputs", ())))
    title = f"{op_name(op)}({', '.join(map(str, getattr(op, 'inputs', ())))})"
    return f"{title} -> {outputs}" if outputs else title


def titles(ops: Sequence[Any]) -> list[str]:
    """Return the titles of the active ops and of the deferred updates after them."""
    return [*map(op_title, ops), DEFERRED_TITLE]


REST_ROW = ("rest", "other")
"""The row of the time that belongs to no other part of a step."""

_SYNCHRONIZATION = ("wait", "wait for the device")
_CONVERSION = ("conversion", "arrays for postprocessing, and back")


def with_slicing(
    step: RunStep,
    slicers: Sequence[Any],
    synchronize: Callable[[], None] | None,
    meter: StepMeter | None,
) -> RunStep:
    """Return a step that slices a batch, runs its minibatches and merges the results."""
    cut: Callable[..., Any] = forward_slicers
    join: Callable[..., dict[str, Any]] = reverse_slicers
    log: StampLog | None = None
    if meter is not None:
        log = meter.log
        cut = _with_time_stamps(cut, meter, "slice", "slice")
        join = _with_time_stamps(join, meter, "unslice", "unslice")
        step = _with_time_stamps(step, meter, *REST_ROW)
        if synchronize is not None:
            synchronize = _with_time_stamps(synchronize, meter, *_SYNCHRONIZATION)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        results = []
        for minibatch in cut(slicers, batch):
            if log is not None:
                log.minibatch += 1
            results.append(step(minibatch))
        if log is not None:
            log.minibatch = 0
        if synchronize is not None:
            synchronize()
        return join(slicers, results, batch)

    return run


def with_synchronization(
    step: RunStep, synchronize: Callable[[], None], meter: StepMeter | None
) -> RunStep:
    """Return a step that waits for the device at its end."""
    if meter is not None:
        step = _with_time_stamps(step, meter, *REST_ROW)
        synchronize = _with_time_stamps(synchronize, meter, *_SYNCHRONIZATION)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        synchronize()
        return result

    return run


def with_postprocessing(
    step: RunStep, ops: Sequence[Any], state: State, target_type: str, meter: StepMeter | None
) -> RunStep:
    """Return a step that runs postprocessing at its end."""
    run_ops: Callable[..., Any] = run_on_batch
    forwards = {id(op): batch_forward(op) for op in ops}
    if meter is not None:
        step = _with_time_stamps(step, meter, *REST_ROW)
        run_ops = _with_time_stamps(run_ops, meter, *_CONVERSION)
        before = meter.row(*_CONVERSION)
        for index, op in enumerate(ops):
            row = "postprocessing", op_title(op), index
            forwards[id(op)] = _with_time_stamps(forwards[id(op)], meter, *row, before=before)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        try:
            filtered = run_ops(
                ops,
                result,
                state,
                target_type,
                False,  # New tensors need no shared memory.
                lambda op: forwards[id(op)],
            )
            if filtered is not None:
                raise ValueError(
                    f"One of {list(map(op_title, ops))} returned {filtered!r}, but postprocessing "
                    "cannot drop samples: the network's results are already made. Filter in the "
                    "data pipeline."
                )
        except Exception as error:
            add_note(error, "This was in the network's postprocessing.")
            raise
        return result

    return run


def _with_time_stamps(
    call: Callable[..., Any], meter: StepMeter, *row: Any, before: int | None = None
) -> Callable[..., Any]:
    """Return a function that stamps the time after `call`, and before it if `before` is a row."""
    stamp, after = meter.log.stamp, meter.row(*row)

    def run(*args: Any) -> Any:
        if before is not None:
            stamp(before)
        result = call(*args)
        stamp(after)
        return result

    return run
