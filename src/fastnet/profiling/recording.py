"""Take down what a network does while it is profiled, and sum it up into sections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm
from time import perf_counter
from typing import Any

import numpy as np

from fastnet._execute import Plan
from fastnet.backend.ranges import OpRanges
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.network.metering import DEFERRED, WAIT, StepMeter, op_title, titles
from fastnet.network.trace_records import TraceRecord
from fastnet.profiling.around import Around, Nested
from fastnet.profiling.blocks import Blocks
from fastnet.profiling.clock import StampCost
from fastnet.profiling.device_events import DeviceEvents
from fastnet.profiling.pace import Pace
from fastnet.profiling.rows import Row, Section, Stats
from fastnet.profiling.sizes import bytes_of
from fastnet.profiling.sums import BEGIN, Part, Sums, Timeline
from fastnet.types import RunStep, State

__all__ = ["Recorder", "SectionRecorder"]

# stamps are summed up from time to time, so that a long run needs little memory: so many of them
# fit into a cache
_MOST_STAMPS = 1 << 14
_NAMES = {
    "setting": "gradients off, and back",
    "deferred": DEFERRED,
    "merge": "the batch's own entries",
    "release": "dropping what is left",
}


class SectionRecorder(StepMeter):
    """Takes the times of the steps of one context, and of others that run the same.

    Args:
        plan: What it runs.
        state: Its context.
        ranges: What names ops to a framework's profiler, or None.
        nvtx: What names them to NVTX, or None.
        events: What takes the times of the device, or None.
        cost: What making a stamp takes.
        skip: Tells whether the next step is not to be measured, and is not asked again once it has
            said no; or None.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        state: State,
        ranges: OpRanges | None,
        nvtx: Around | None,
        events: DeviceEvents | None,
        cost: StampCost,
        skip: Callable[[], bool] | None,
    ) -> None:
        super().__init__()
        self.mode = str(state["mode"])
        self.eager = bool(state["eager"])
        self.warmup = bool(state["warmup"])
        self.epoch = int(state["epoch"])
        self.plan = plan
        self.unmeasured = 0
        self.sizes: dict[tuple[str, str], int] = {}
        self.parts: list[Part] = []
        self._rows: dict[tuple[str, str, int | None], int] = {}
        self._plans: dict[int, int] = {}
        self._ranges = ranges
        self._events = events
        self._steps = 0
        always: list[Around] = list(filter(None, (nvtx, events)))
        self._quiet: Around | None = Nested(always) if always else None
        self._shown: Around | None = Nested([ranges, *always]) if ranges is not None else None
        self._shows: bool | None = None
        self._weighed = False
        self._skip = skip
        self._sums = Sums(cost)
        self._pace = Pace()

    # ------------------------------------------------------------------ what a network calls

    def row(self, kind: str, name: str, index: int | None = None) -> int:
        """Return the number that stamps of a part have: the same one for the same part.

        Args:
            kind: The part's kind.
            name: Its name.
            index: Its place, or None.
        """
        return self._row(Part(kind, name, index))

    def _row(self, part: Part) -> int:
        key = part.kind, part.name, part.place
        if key not in self._rows:
            self._rows[key] = len(self.parts)
            self.parts.append(part)
        return self._rows[key]

    def plan_rows(self, plan: Plan) -> int:
        """Return the first number of the stamps that a plan makes.

        Args:
            plan: The plan.
        """
        if id(plan) not in self._plans:
            self._plans[id(plan)] = len(self.parts)
            ops, places = plan.ops, defaultdict[str, int](int)
            for kind, which in plan.spans:
                place = which if isinstance(which, int) else None
                name = _NAMES.get(kind, kind) if which is None else str(which)
                if kind == "op":
                    name = op_title(ops[which])
                elif which is not None:
                    place = places[kind]
                    places[kind] += 1
                self._rows[kind, name, place] = len(self.parts)
                self.parts.append(Part(kind, name, place, in_kernel=True))
        return self._plans[id(plan)]

    def measured(self, step: RunStep, plain: RunStep) -> RunStep:
        """Return the function that runs a step and measures it; not while another thread is at it.

        Args:
            step: Runs a step, with stamps.
            plain: Runs it without any.
        """
        # each call of Python's that a step makes here costs as much as two ops that it measures
        log, events, take_pace = self.log, self._events, self._pace.take
        stamp, acquire, release = log.stamp, self._lock.acquire, self._lock.release
        is_on = self._is_off if self._ranges is None else self._ranges.active
        rest, measuring = self.row("rest", "the rest"), self.row("measuring", "measuring")

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not acquire(False):  # by its name it takes twice as long
                self.unmeasured += 1
                return plain(batch)
            begun = len(log)
            if begun > _MOST_STAMPS:
                started = perf_counter()
                self._sum_up()
                begun = 0
                # measuring takes that long, not the time between two steps
                log.stamp_at(BEGIN, started)
            else:
                stamp(BEGIN)
            try:
                if self._skip is not None:
                    if self._skip():
                        log.keep(begun)
                        return plain(batch)
                    self._skip = None
                shows = is_on()
                if shows is not self._shows:
                    self._surround(shows)
                stamp(measuring)
                try:
                    result = step(batch)
                except BaseException:
                    self._forget(begun)
                    raise
                stamp(rest)
                if events is not None:
                    events.end_step(self._steps)
                    self._steps += 1
                if not self._weighed:
                    self._weigh(batch, result)
                stamp(measuring)
                # between the last stamp of this step and the first of the next, so part of neither
                take_pace()
                return result
            finally:
                release()

        return run

    def _forget(self, begun: int) -> None:
        """Forget a step that failed."""
        self.log.keep(begun)
        if self._events is not None:
            self._events.drop_step()

    @staticmethod
    def _is_off() -> bool:
        return False

    def _surround(self, shows: bool) -> None:
        """Settle what is around each op of a step: a profiler may come and go between steps."""
        self._shows = shows
        around = self._shown if shows else self._quiet
        self.before = None if around is None else around.before
        self.after = None if around is None else around.after

    # ------------------------------------------------------------------ what becomes of it

    def _weigh(self, batch: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self._weighed = True
        for part in self.parts:
            values = {"input": batch, "output": result}.get(part.kind, {})
            if part.name in values:
                self.sizes[part.kind, part.name] = bytes_of(values[part.name])

    def _sum_up(self) -> None:
        self._sums.add(self.log, self.parts)

    def section(self, name: str) -> Section | None:
        """Sum up what was measured.

        Args:
            name: What to call the section.

        Returns:
            The section; None if no step was measured.
        """
        self._sum_up()
        device = self._events.spans() if self._events is not None else ()
        section = self._sums.section(
            name, self.mode, self.eager, self.parts, self.sizes, device, self._pace, self._round()
        )
        # what has a loss to minimise updates a model, be it inside of another op
        trains = any(getattr(op, "get_fe_loss_keys", tuple)() for op in self.plan.ops)
        return section and replace(section, trains=trains)

    def _round(self) -> int:
        """Return after how many steps the ops come round: some update once in several steps."""
        merged = (getattr(op, "merge_grad", 1) for op in self.plan.ops)
        return lcm(*(count for count in merged if isinstance(count, int) and count > 0))

    def timeline(self, name: str) -> Timeline:
        """Return the stamps of the first steps.

        Args:
            name: What the section is called.
        """
        self._sum_up()
        stamps = self._sums.first_stamps()
        steps = int((stamps["row"] == BEGIN).sum())
        spans = self._events.spans() if self._events is not None else ()
        device = tuple(span for span in spans if span.step < steps)
        return Timeline(name, tuple(self.parts), stamps, device)


class Recorder:
    """Takes the times of a network, a section for each opening that runs something else.

    Args:
        skip: How many steps are to pass before any is measured.
        make_events: Makes what takes the times of the device, or None.
        make_nvtx: Given the names of ops, makes what names them to NVTX, or None.
        traces: Gives what the network tells of its traced and compiled steps.
    """

    def __init__(
        self,
        skip: int = 0,
        make_events: Callable[[], DeviceEvents] | None = None,
        make_nvtx: Callable[[list[str]], Around] | None = None,
        traces: Callable[[], Sequence[TraceRecord]] = tuple,
    ) -> None:
        self._make_events = make_events
        self._make_nvtx = make_nvtx
        self.cost = StampCost.measure()
        self.sections: dict[Any, SectionRecorder] = {}
        self._openings: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._left = skip
        self._traces = traces
        # while steps are skipped: the last trace that was there before
        self._traced = _last_number(traces()) if skip else None

    def record(self, mode: str, name: str, seconds: float) -> None:
        """Record the time that something between steps took."""
        self._openings[mode, name].append(seconds)

    def open_step(
        self, plan: ExecutionPlan, state: State, ranges: OpRanges | None
    ) -> SectionRecorder:
        """Return the meter that takes the times of an opening's steps.

        Args:
            plan: What it runs; openings of one plan are one section.
            state: Its context.
            ranges: What names ops to a framework's profiler, or None.
        """
        key = id(plan), state["mode"], state["eager"], state["warmup"]
        section = self.sections.get(key)
        if section is None:
            nvtx = None
            if self._make_nvtx is not None:
                nvtx = self._make_nvtx(titles(plan.ops))
            events = None if self._make_events is None else self._make_events()
            skip = self._skips if self._left else None
            section = SectionRecorder(plan, state, ranges, nvtx, events, self.cost, skip)
            self.sections[key] = section
        return section

    def _skips(self) -> bool:
        if not self._left:
            self._take_traces()
            return False
        self._left -= 1
        return True

    def _take_traces(self) -> None:
        """Take down what the steps that were skipped have traced: of the others there are rows."""
        if self._traced is None:
            return
        last, self._traced = self._traced, None
        for trace in self._traces():
            if trace.number > last:
                self._openings[trace.mode, f"trace: {trace.reason}"].append(trace.seconds)
                if trace.compile_seconds:
                    name = f"compile: {trace.reason}"
                    self._openings[trace.mode, name].append(trace.compile_seconds)

    def openings(self) -> tuple[Row, ...]:
        """Sum up what opening the network took, mode by mode, and what the steps skipped traced."""
        self._take_traces()
        return tuple(
            Row(
                name,
                "opening",
                None,
                mode,
                len(seconds),
                **vars(Stats.of(np.array(seconds))),
                in_step=False,
                blocks=Blocks.of(None, len(seconds), 1).means(seconds) if name == WAIT else (),
            )
            for (mode, name), seconds in self._openings.items()
        )


def _last_number(traces: Sequence[TraceRecord]) -> int:
    return traces[-1].number if traces else 0
