"""Finds the trace for a step, or traces the ops.

On entry, `Programs` finds the `Program` of the active ops, which finds the traces for the present
state of its ops, models and optimizers by their guards. In a step, a `TracedStep` of the kernel
finds the trace for the signature of the batch and calls it. Where there is none, `_Traces` traces
the ops, for this signature or for batches of any size, and records why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from fastnet._trace import FORMS, Parts, Slot, Trace, TracedStep, map_form
from fastnet.backend.tf.graph import KIND, caller
from fastnet.errors import add_note
from fastnet.network.compile_options import CompileOptions
from fastnet.network.dynamic_axes import AxesOf, DynamicAxes
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_limits import MANY_TRACES, MAX_STATES
from fastnet.network.tf.compiled import Compiler, Signatures, XlaProgram
from fastnet.network.tf.input_signature import (
    Axis,
    any_size,
    changed_axes,
    difference,
    open_lengths,
    slots_of,
)
from fastnet.network.tf.replicas import Replicas
from fastnet.network.tf.step_graph import ReplicaGraph, StepGraph
from fastnet.network.tf.trace_guard import TraceGuard, tracing
from fastnet.network.trace_records import Records
from fastnet.op.settings import last_resolved
from fastnet.types import State
from fastnet.util.warnings import warn

# Records why ops were traced or compiled, the seconds of both, and why they were not compiled or
# not verified.
Record = Callable[[str, float, float, str | None, str | None], None]

# The ids of the current values of schedulers, and of the ops.
ActiveItems = tuple[list[int], list[int]]
# The active items of the latest trace of a mode, and its guard.
Latest = tuple[ActiveItems, TraceGuard | None]


class Programs:
    """The graphs of one network."""

    def __init__(self, options: CompileOptions | None = None) -> None:
        self.records = Records("as a graph")
        self.on_trace: Callable[[str, float, float], None] | None = None
        self._options = options
        # The state of the current session; there is one at a time.
        self._state: State = {}
        self._found: WeakValueDictionary[Any, Program] = WeakValueDictionary()
        self._latest: dict[Hashable, Latest] = {}
        # How often each number has changed, by the mode and the path.
        self._changes: Counter[tuple[Hashable, str]] = Counter()

    @property
    def compiles(self) -> bool:
        """Whether steps are to be compiled."""
        return self._options is not None

    def find(
        self, plan: ExecutionPlan, state: State, replicas: Replicas | None, dynamic: DynamicAxes
    ) -> Program:
        """Find the graphs of a plan: plans of the same ops share them."""
        self._state = state
        returned = plan.kernel.resolution.returned
        key = (
            state["mode"],
            state["warmup"],
            tuple(map(id, plan.ops)),
            # `forward` may be assigned, as may the class of an op.
            tuple(id(getattr(op.forward, "__func__", op.forward)) for op in plan.ops),
            # What follows from settings is part of the forwards that a program holds.
            tuple(map(last_resolved, plan.ops)),
            frozenset(returned.names()),
            # Reading the keys of ops again creates a new table.
            id(returned.table),
            None if replicas is None else id(replicas.strategy),
        )
        program = plan.programs.get(key) or self._found.get(key)
        if program is None:
            record = partial(self._record, str(state["mode"]))
            graph = (
                StepGraph(plan, state) if replicas is None else ReplicaGraph(plan, state, replicas)
            )
            program = Program(
                graph, plan, state, record, self._latest, self._changes, dynamic, self._options
            )
            self._found[key] = program
        plan.programs[key] = program
        return program

    def _record(
        self,
        mode: str,
        reason: str,
        seconds: float,
        compiling: float,
        fallback: str | None,
        unverified: str | None,
    ) -> None:
        context = {"mode": mode, "epoch": self._state["epoch"]}
        self.records.add(context, reason, seconds, compiling, fallback, unverified)
        if self.on_trace is not None:
            self.on_trace(reason, seconds, compiling)


class Program:
    """The traces of a plan."""

    def __init__(
        self,
        graph: StepGraph,
        plan: ExecutionPlan,
        state: State,
        record: Record,
        latest: dict[Hashable, Latest],
        changes: Counter[tuple[Hashable, str]],
        dynamic: DynamicAxes,
        options: CompileOptions | None = None,
    ) -> None:
        self.dynamic = dynamic
        self.graph = graph
        self._compiler = None if options is None else self._make_compiler(options)
        self.keys = graph.keys
        self.mode = str(state["mode"])
        self.traced: TraceGuard | None = None
        self.record = record
        self._ops = plan.ops
        self._models = plan.models
        self._is_training = state["mode"] == "train" or plan.takes_gradients
        self._latest = latest
        self._changes = changes
        # Traces for all states of the ops and models.
        self.trace_count = 0
        self._setting = state["mode"], state["warmup"]
        self._active_items = list(map(id, plan.scheduled)), list(map(id, plan.ops))
        self._epoch = int(state["epoch"])
        self._steps: list[_Traces] = []
        # A session that is measured asks twice before the first trace.
        self._untraced: _Traces | None = None

    def current_step(self) -> TracedStep:
        """Return the step for the ops and models as they are now, which traces where it must."""
        for traces in reversed(self._steps):
            if traces.guard is not None and traces.guard.first_change() is None:
                # Drop the least recently used first.
                self._steps.remove(traces)
                self._steps.append(traces)
                return traces.step
        if self._untraced is None:
            self._untraced = _Traces(self)
        return self._untraced.step

    def make_guard(self) -> TraceGuard:
        """Return a guard of the ops and models as they are now."""
        return TraceGuard(self._models, self._ops, self._is_training)

    def keep(self, traces: _Traces) -> None:
        """Keep traces to be found again."""
        self._latest[self._setting] = self._active_items, traces.guard
        self.traced = traces.guard
        if traces is self._untraced:
            self._untraced = None
        if traces not in self._steps:
            while len(self._steps) >= MAX_STATES:
                del self._steps[0]
            self._steps.append(traces)

    def first_reason(self) -> str:
        """Return why there is no trace for the ops and the models as they are now."""
        before, guard = self._latest.get(self._setting, (self._active_items, None))
        if self.traced is not None or before[1] == self._active_items[1]:
            # Another program has traced the same ops, with other settings.
            guard = self.traced or guard
            change = None if guard is None else guard.first_change()
            if guard is not None and change:
                self.warn_of_number(guard)
                return f"{change} has changed"
        # A dataset's own ops are active beside others, and do not replace them.
        if all(now != then for now, then in zip(self._active_items, before, strict=True)):
            return f"other ops are active from epoch {self._epoch} on"
        return f"first step in mode '{self.mode}'" + (", warming up" if self._setting[1] else "")

    def warn_of_number(self, guard: TraceGuard) -> None:
        """Warn if the change that a guard has found is the second one of the same number."""
        path = guard.changed_number()
        if path is None:
            return
        self._changes[self._setting, path] += 1
        if self._changes[self._setting, path] == 2:
            warn(
                f"The ops of mode '{self.mode}' are traced again, for the second time, because "
                f"{path} has changed. Each trace takes as long as many steps. Hold a number that "
                "changes in a tf.Variable, or pass it in the batch as a tensor."
            )

    def _make_compiler(self, options: CompileOptions) -> Compiler:
        def record(
            reason: str, seconds: float, fallback: str | None, unverified: str | None
        ) -> None:
            self.record(reason, 0.0, seconds, fallback, unverified)

        return Compiler(options, record, self.graph)

    def trace(
        self, forms: list[Any], wide: bool, signatures: Signatures
    ) -> tuple[Trace, XlaProgram | None]:
        """Trace the ops for a signature, and prepare to compile them."""
        concrete, outputs = self.graph.trace(forms)
        trace = Trace(caller(concrete, self.graph.explain), forms, outputs, wide)
        if self._compiler is None:
            return trace, None
        return trace, XlaProgram(self._compiler, concrete, trace, signatures)


class _Traces:
    """The traces of a program for one state of its ops and models."""

    def __init__(self, program: Program) -> None:
        self.step = TracedStep(program.keys, KIND, self._trace, context=("epoch",))
        self.guard: TraceGuard | None = None
        self._program = program
        self._latest: list[Any] | None = None
        # Axes whose lengths ops must know.
        self._closed: set[Axis] = set()
        self._signatures = Signatures()

    def _trace(self, values: list[Any]) -> Trace:
        program = self._program
        started = time.perf_counter()
        exact = [_form_of(*entry) for entry in zip(program.keys, values, strict=True)]
        latest = self._latest
        change = None if self.guard is None else self.guard.first_change()
        if self.guard is not None and change:
            # It has changed while the network is open.
            program.warn_of_number(self.guard)
            self.step.traces = []
            self._closed = set()
            self._signatures = Signatures()
            reason = f"{change} has changed"
        elif latest is None:
            reason = program.first_reason()
        else:
            reason = difference(program.keys, exact, latest)
        with tracing():
            trace, step, remark = self._trace_widest(exact)
        reason += remark
        if trace.wide:
            self.step.traces = [
                one
                for one in self.step.traces
                if not (one.wide and FORMS.matches(trace.inputs, one.inputs))
            ]
        self._latest = trace.inputs
        program.trace_count += 1
        self.guard = program.make_guard()
        program.keep(self)

        def record() -> None:
            seconds = time.perf_counter() - started
            if step is None:
                program.record(reason, seconds, 0.0, None, None)
                return
            step.reason = reason
            program.record(
                reason, seconds - step.seconds, step.seconds, step.fallback, step.unverified
            )

        _time_first_call(trace, record)
        if program.trace_count == MANY_TRACES:
            warn(self._describe_many(reason, exact, latest))
        return trace

    def _trace_widest(self, exact: list[Any]) -> tuple[Trace, XlaProgram | None, str]:
        """Trace for these lengths, or for any of the axes that have had other ones.

        Some ops must know a length, and fail where it is open.
        """
        axes = self._axes_to_open(exact)
        first_axes = {axis for axis in axes if axis[1] == 0}
        ways = [
            (axes, ""),
            (first_axes, "one trace for each shape of a sample"),
            (set(), f"one trace for each {'batch size' if first_axes else 'shape of a sample'}"),
        ]
        keys = self._program.keys
        first: Exception | None = None
        last: Exception | None = None
        for index, (opened, meaning) in enumerate(ways):
            if index and opened == ways[index - 1][0]:
                continue
            try:
                forms = open_lengths(keys, exact, opened)
                trace, step = self._program.trace(forms, bool(opened), self._signatures)
            except Exception as error:
                first = first or error
                last = error
                continue
            self._closed |= axes - opened
            if last is None:
                return trace, step, _describe_open_axes(opened)
            because = f"; {meaning}, because with any an op failed: {_first_line(last)}"
            return trace, step, because
        assert first is not None
        assert last is not None
        if _first_line(first) != _first_line(last):
            # A model that the first attempt has partly built fails differently the next time.
            add_note(last, f"Before that, for batches of any size: {_first_line(first)}")
        add_note(
            last,
            "This was while the ops were traced into a graph. To run them one by one, and look "
            "into each, open the network with eager=True.",
        )
        raise last

    def _axes_to_open(self, exact: list[Any]) -> set[Axis]:
        """Find the axes that may be left open, and have had other lengths."""
        keys = self._program.keys
        may = self._axes_of(exact, self._program.dynamic.allowed) - self._closed
        if self._program.graph.has_workers:
            # Workers whose batches differ in size must trace equally often.
            return may
        opened = open_lengths(keys, exact, may)
        axes = self._axes_of(exact, self._program.dynamic.at_once) - self._closed
        for other in self.step.traces:
            if FORMS.matches(opened, other.inputs):
                axes |= changed_axes(keys, exact, other.inputs)
        return axes

    def _axes_of(self, forms: list[Any], axes_of: AxesOf) -> set[Axis]:
        """Return those axes of a batch that a function of a key and a rank returns."""
        return {
            (key, axis)
            for key, form in zip(self._program.keys, forms, strict=True)
            for slot in slots_of(form)
            if slot.shape is not None
            for axis in axes_of(key, len(slot.shape))
        }

    def _describe_many(self, reason: str, exact: list[Any], before: list[Any] | None) -> str:
        """Return the warning that there are many traces, with the way to have fewer."""
        program = self._program
        text = (
            f"The ops of mode '{program.mode}' were traced {program.trace_count} times, lastly "
            f"because {reason}. Each trace takes as long as many steps. Pass values that vary as "
            "tensors, or leave them out of the inputs of ops. network.traces lists all traces."
        )
        if before is None or not FORMS.matches(any_size(exact), any_size(before)):
            return text
        for key, axis in sorted(changed_axes(program.keys, exact, before)):
            name = f"axis {axis} of '{key}'"
            if (key, axis) in self._closed:
                return f"{text} The ops must know the length of {name}."
            if (key, axis) not in self._axes_of(exact, program.dynamic.allowed):
                more = program.dynamic.with_axis(key, axis)
                return f"{text} One trace does for any length of {name} with Network(..., {more})."
        return text


def _time_first_call(trace: Trace, done: Callable[[], None]) -> None:
    """Call a function after the first call of a trace."""
    call = trace.call

    def call_first(tensors: list[Any]) -> Any:
        trace.call = call
        try:
            return call(tensors)
        finally:
            done()

    trace.call = call_first


def _describe_open_axes(axes: set[Axis]) -> str:
    if not axes:
        return ""
    numbers = sorted({axis for _, axis in axes})
    name = "axis" if len(numbers) == 1 else "axes"
    return f"; from now on any length of {name} {', '.join(map(str, numbers))} fits"


def _form_of(key: str, value: Any) -> Any:
    try:
        return map_form(KIND.form_of(value), _settle, as_form=True)
    except RecursionError as error:
        add_note(error, f"The value under '{key}' holds itself, or is nested too deeply.")
        raise


def _settle(part: Slot | Parts) -> Slot | Parts:
    """Leave open how many rows, or entries, a value has that is made of several tensors."""
    if isinstance(part, Slot) or part.kind.distributed:
        return part
    return Parts(
        part.kind, [Slot(one.type, one.shape and (None, *one.shape[1:])) for one in part.slots]
    )


def _first_line(error: Exception) -> str:
    # The text of a KeyError is in quotes, including its line breaks.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = str(text).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
