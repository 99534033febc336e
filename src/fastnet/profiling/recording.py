"""Records the time stamps of a network while it is profiled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from fastnet._execute import KernelPlan
from fastnet._nest import leaves_of
from fastnet.backend.ranges import OpRanges
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.step import DEFERRED_TITLE, REST_ROW, OpHook, StepMeter, op_title
from fastnet.network.trace_records import TraceRecord
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.profiling.device_events import DeviceEvents
from fastnet.profiling.rows import Row, Section
from fastnet.profiling.stamp_sums import StampCost, StampSums
from fastnet.profiling.stamps import BEGIN, StepPart, Timeline
from fastnet.types import RunStep, State

# Stamps are summed up regularly: a long run needs little memory, and the stamps fit into a cache.
_MAX_STAMPS = 1 << 14
_ROW_NAMES = {
    "grad_mode": "disable gradients",
    "deferred": DEFERRED_TITLE,
    "merge": "other batch entries",
    "release": "release values",
}


class SectionRecorder(StepMeter):
    """Records the steps of all sessions with one plan, mode and way to run.

    `is_skipped` returns whether the next step is skipped, and counts it. Once it has returned
    False, it is not called again.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        state: State,
        ranges: OpRanges | None,
        events: DeviceEvents | None,
        cost: StampCost,
        is_skipped: Callable[[], bool] | None,
    ) -> None:
        super().__init__()
        self.mode = str(state["mode"])
        self.eager = bool(state["eager"])
        self.warmup = bool(state["warmup"])
        self.epoch = int(state["epoch"])
        self.plan = plan
        self.unmeasured = 0
        self.sizes: dict[tuple[str, str], int] | None = None
        self.parts: list[StepPart] = []
        self._row_numbers: dict[tuple[str, str, int | None], int] = {}
        self._first_rows: dict[int, int] = {}
        self._ranges = ranges
        self._events = events
        self._steps = 0
        self._shows_ranges: bool | None = None
        self._is_skipped = is_skipped
        self._sums = StampSums(cost)

    def row(self, kind: str, name: str, index: int | None = None) -> int:
        """Return the row number for the time stamps of a part of the step."""
        key = kind, name, index
        if key not in self._row_numbers:
            self._row_numbers[key] = len(self.parts)
            self.parts.append(StepPart(*key))
        return self._row_numbers[key]

    def plan_rows(self, plan: KernelPlan) -> int:
        """Return the first row number for the time stamps that a plan makes."""
        if id(plan) not in self._first_rows:
            self._first_rows[id(plan)] = len(self.parts)
            ops, key_counts = plan.ops, Counter[str]()
            # A span is a kind and the index of an op, the key of a value, or None.
            for kind, op_or_key in plan.spans:
                index: int | None = None
                if kind == "op":
                    name, index = op_title(ops[op_or_key]), op_or_key
                elif op_or_key is not None:
                    name, index = str(op_or_key), key_counts[kind]
                    key_counts[kind] += 1
                else:
                    name = _ROW_NAMES.get(kind, kind)
                self._row_numbers[kind, name, index] = len(self.parts)
                self.parts.append(StepPart(kind, name, index, in_kernel=True))
        return self._first_rows[id(plan)]

    def measured(self, step: RunStep, unmeasured_step: RunStep) -> RunStep:
        """Return a function that runs and measures `step`.

        It runs `unmeasured_step` if that step is skipped, or while a step of another thread is
        measured or skipped.
        """
        # The attributes are looked up here, as each look-up in a step would be measured.
        log, events = self.log, self._events
        stamp, acquire, release = log.stamp, self._lock.acquire, self._lock.release
        rest, measuring = self.row(*REST_ROW), self.row("measuring", "measuring")
        ranges_active = bool if self._ranges is None else self._ranges.active

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not acquire(False):
                self.unmeasured += 1
                return unmeasured_step(batch)
            try:
                step_start = len(log)
                if step_start > _MAX_STAMPS:
                    started = perf_counter()
                    self._sum_up()
                    step_start = 0
                    log.stamp_at(BEGIN, started)  # Summing up counts as measuring.
                else:
                    stamp(BEGIN)
                if self._is_skipped is not None:
                    if self._is_skipped():
                        log.keep(step_start)
                        return unmeasured_step(batch)
                    self._is_skipped = None
                shows_ranges = ranges_active()
                if shows_ranges is not self._shows_ranges:
                    self._surround(shows_ranges)
                stamp(measuring)
                try:
                    result = step(batch)
                except BaseException:
                    log.keep(step_start)  # A failed step has no row.
                    if events is not None:
                        events.drop_step()
                    raise
                stamp(rest)
                if events is not None:
                    events.end_step(self._steps)
                    self._steps += 1
                if self.sizes is None:
                    self._measure_sizes(batch, result)
                stamp(measuring)
                return result
            finally:
                release()

        return run

    def _surround(self, shows_ranges: bool) -> None:
        """Set the calls around each op: a framework's profiler may start between steps."""
        self._shows_ranges = shows_ranges
        observers: list[OpRanges | DeviceEvents] = []
        if shows_ranges and self._ranges is not None:
            observers.append(self._ranges)
        if self._events is not None:
            observers.append(self._events)
        self.before = _call_all([observer.before for observer in observers])
        self.after = _call_all([observer.after for observer in reversed(observers)])

    def _measure_sizes(self, batch: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self.sizes = {}
        for part in self.parts:
            values = {"input": batch, "output": result}.get(part.kind, {})
            if part.name in values:
                self.sizes[part.kind, part.name] = bytes_of(values[part.name])

    def _sum_up(self) -> None:
        self._sums.add(self.log, self.parts)

    def section(self, name: str) -> Section | None:
        """Return the section of the measured steps, or None if there are none."""
        self._sum_up()
        return self._sums.section(
            name,
            self.mode,
            self.eager,
            self.parts,
            self.sizes or {},
            self._events.spans() if self._events is not None else (),
            # Ops with losses to minimize update models; they may be inside of other ops.
            trains=any(as_tensor_op(op).updates_models for op in self.plan.ops),
        )

    def timeline(self, name: str) -> Timeline:
        """Return the stamps of the first steps."""
        self._sum_up()
        stamps = self._sums.first_stamps()
        steps = int((stamps["row"] == BEGIN).sum())
        spans = self._events.spans() if self._events is not None else ()
        device = tuple(span for span in spans if span.step < steps)
        return Timeline(name, tuple(self.parts), stamps, device)


class Recorder:
    """Records a network: a section for each plan, mode and way to run.

    `traces` returns the network's trace records.
    """

    def __init__(
        self,
        skip: int = 0,
        make_events: Callable[[], DeviceEvents] | None = None,
        traces: Callable[[], Sequence[TraceRecord]] = tuple,
    ) -> None:
        self._make_events = make_events
        self.cost = StampCost.measure()
        self.sections: dict[Any, SectionRecorder] = {}
        self._entry_times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._skips_left = skip
        self._traces = traces
        # Number of the last trace before the skipped steps; None once theirs are recorded, or if
        # none are skipped.
        self._trace_before_skipping: int | None = None
        if skip:
            self._trace_before_skipping = traces()[-1].number if traces() else 0

    def record(self, mode: str, name: str, seconds: float) -> None:
        """Record the time that something between steps took."""
        self._entry_times[mode, name].append(seconds)

    def open_step(
        self, plan: ExecutionPlan, state: State, ranges: OpRanges | None
    ) -> SectionRecorder:
        """Return the meter for the steps of a session."""
        key = id(plan), state["mode"], state["eager"], state["warmup"]
        if key not in self.sections:
            self.sections[key] = SectionRecorder(
                plan,
                state,
                ranges,
                None if self._make_events is None else self._make_events(),
                self.cost,
                # The first measured step records the traces of the skipped ones.
                self._skip_step if self._trace_before_skipping is not None else None,
            )
        return self.sections[key]

    def _skip_step(self) -> bool:
        if not self._skips_left:
            self._record_traces()
            return False
        self._skips_left -= 1
        return True

    def _record_traces(self) -> None:
        """Record the traces of skipped steps; those of measured steps have rows."""
        if self._trace_before_skipping is None:
            return
        last, self._trace_before_skipping = self._trace_before_skipping, None
        for trace in self._traces():
            if trace.number > last and trace.seconds:
                self.record(trace.mode, f"trace: {trace.reason}", trace.seconds)
                if trace.compile_seconds:
                    self.record(trace.mode, f"compile: {trace.reason}", trace.compile_seconds)

    def entries(self) -> tuple[Row, ...]:
        """Return the rows of entering the network, waiting for data, and traces of skipped steps.

        These traces are recorded first, if they are not yet.
        """
        self._record_traces()
        return tuple(
            Row.of(
                np.array(seconds),
                name=name,
                kind="entry",
                index=None,
                section=mode,
                count=len(seconds),
                in_step=False,
            )
            for (mode, name), seconds in self._entry_times.items()
        )


def bytes_of(value: Any) -> int:
    """Return the bytes of the tensors and arrays in a nest.

    >>> import numpy as np
    >>> bytes_of({"x": [np.zeros(3), np.zeros(2, "i1")], "name": "a"})
    26
    """
    return sum(map(_leaf_bytes, leaves_of(value)))


def _leaf_bytes(leaf: Any) -> int:
    size = getattr(leaf, "nbytes", None)
    if isinstance(size, int):
        return size
    # A TensorFlow tensor has no nbytes.
    num_elements = getattr(getattr(leaf, "shape", None), "num_elements", None)
    count = None if num_elements is None else num_elements()
    return count * int(getattr(leaf.dtype, "size", 0)) if count else 0


def _call_all(functions: Sequence[Callable[[int], None]]) -> OpHook:
    """Return a function that calls all of them with the index of an op, or None."""
    if len(functions) < 2:
        return functions[0] if functions else None

    def call(index: int) -> None:
        for function in functions:
            function(index)

    return call
