"""The traced steps of the same ops in TensorFlow: decides what to trace, and does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastnet._trace import FORMS, Parts, Slot, map_form
from fastnet.backend.tf.graph import KIND
from fastnet.backend.tf.models import needs_batch_size, warn_of_masks
from fastnet.errors import add_note
from fastnet.network.compile_options import CompileOptions
from fastnet.network.dynamic_axes import AxesOf, DynamicAxes
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_limits import MANY_TRACES, MAX_TRACES
from fastnet.network.program_set import ProgramSet
from fastnet.network.tf.compiled import XlaProgram, reason_not_to_compile
from fastnet.network.tf.input_signature import (
    Axis,
    any_size,
    changed_axes,
    describe_difference,
    has_unknown_lengths,
    open_lengths,
    slots_of,
)
from fastnet.network.tf.program import GraphProgram
from fastnet.network.tf.replicas import Replicas
from fastnet.network.tf.step_tracer import StepTracer, TracedGraph, uses_optimizers
from fastnet.network.tf.trace_guard import TraceGuard, tracing
from fastnet.network.trace_records import Records
from fastnet.types import State
from fastnet.util.warnings import warn

# The ids of the current values of schedulers, and of the ops.
ActiveItems = tuple[list[int], list[int]]


@dataclass
class TraceHistory:
    """The latest traces of a network in all its program sets, for the reason of the next trace.

    Attributes:
        latest: The active items of the latest trace of each mode and warmup, and its guard.
        changes: How often each number has changed, by the mode, the warmup and the path.
    """

    latest: dict[Hashable, tuple[ActiveItems, TraceGuard]] = field(default_factory=dict)
    changes: Counter[tuple[Hashable, str]] = field(default_factory=Counter)


class GraphProgramSet(ProgramSet[GraphProgram]):
    """The traced steps of the ops of a plan.

    Args:
        plan: The plan.
        state: The state of a session.
        replicas: The replicas of a strategy; None for one device.
        options: The options for compiling; None if steps run as graphs.
        records: The records of the network.
        dynamic: The axes of a batch whose lengths may vary within one trace.
        history: What the network has traced so far.

    Attributes:
        keys: The keys that ops read from the batch, in the order of a signature's forms.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        state: State,
        replicas: Replicas | None,
        options: CompileOptions | None,
        records: Records,
        dynamic: DynamicAxes,
        history: TraceHistory,
    ) -> None:
        super().__init__(MAX_TRACES if options is None else options.max_programs, records)
        self._tracer = StepTracer(plan, state, replicas)
        self.keys = self._tracer.keys
        self._options = options
        self._dynamic = dynamic
        self._history = history
        self._models, self._ops = plan.models, plan.ops
        self._is_training = uses_optimizers(plan, state)
        self._setting = state["mode"], bool(state["warmup"])
        self._active_items = list(map(id, plan.scheduled)), list(map(id, plan.ops))
        # The program that was traced last.
        self._latest: GraphProgram | None = None
        # Axes whose lengths ops must know, in the state that the latest program was traced in.
        self._fixed_axes: set[Axis] = set()

    def forget_comparisons(self) -> None:
        """Compare the ops and models again with what each program was traced from."""
        for program in self.programs:
            program.guard.forget_comparison()

    def trace(self, batch: Mapping[str, Any], epoch: int) -> GraphProgram:
        """Trace the ops for batches like one that no program is valid for.

        Args:
            batch: The batch.
            epoch: The epoch.

        Raises:
            Exception: What an op raises.
        """
        exact = [_form_of(key, batch[key]) for key in self.keys]
        forms = [map_form(form, _with_open_rows, as_form=True) for form in exact]
        warn_of_masks({key: batch[key] for key in self.keys})
        valid = [program for program in self.programs if program.difference() is None]
        if not valid:
            self._fixed_axes = set()
        if any(map(needs_batch_size, self._models)):
            self._fixed_axes |= self._axes_of(exact, lambda key, rank: {0})
        latest = self._latest if self._latest in valid else next(iter(valid), None)
        before = None if latest is None else latest.signature.inputs
        reason = self._reason_to_trace(forms, before, epoch)
        if self._compiles:
            is_change = bool(self.programs) and not valid
            self.fallback_reason = self.refuse_another(reason, is_change)
        # Lengths that are unknown in a tf.function around the step are no lengths for XLA.
        compiles = self._compiles and not has_unknown_lengths(exact)

        axes: set[Axis] = set()
        with tracing(self._ops, self._models):
            traced, problem = self._trace_for_xla(exact) if compiles else (None, None)
            if traced is None:
                traced, axes, remark = self._trace_widest(forms, valid)
                reason += remark
        guard = self._find_guard()
        if compiles and problem is None:
            program = self._make_for_xla(traced, guard, reason)
        else:
            # The problem is not one of the ops, which can be traced otherwise.
            self.fallback_reason = self.fallback_reason or problem
            program = self._make(traced, guard, reason, is_general=bool(axes))
        self._latest = program
        self._history.latest[self._setting] = self._active_items, program.guard
        self.add(program)
        if self.count == MANY_TRACES:
            warn(self._describe_many(reason, forms, before))
        return program

    def add(self, program: GraphProgram) -> None:
        """Add a program that was just made, in place of those that it makes superfluous."""
        super().add(program)
        inputs = program.signature.inputs
        for other in self.programs:
            is_covered = other.is_general and FORMS.matches(inputs, other.signature.inputs)
            if other is not program and is_covered and other.guard is program.guard:
                self.discard(other)
        for is_general in (False, True):
            alike = [other for other in self.programs if other.is_general is is_general]
            for other in alike[max(MAX_TRACES, self.max_programs) :]:
                self.discard(other)

    def record(
        self,
        program: GraphProgram,
        state: State,
        reason: str,
        seconds: float,
        compile_seconds: float,
    ) -> None:
        """Record why a program was traced or compiled, and the seconds of both."""
        found = program.fallback, program.unverified
        self.records.add(state, reason, seconds, compile_seconds, *found)

    @property
    def _compiles(self) -> bool:
        """Whether XLA is to compile further programs."""
        return self._options is not None and self.fallback_reason is None

    def _make_for_xla(self, traced: TracedGraph, guard: TraceGuard, reason: str) -> GraphProgram:
        """Return the program of a graph that was traced for XLA, if XLA can compile it."""
        assert self._options is not None
        self.fallback_reason = reason_not_to_compile(traced, self._tracer, self._options)
        if self.fallback_reason is not None:
            return self._make(traced, guard, reason, is_general=False)
        return XlaProgram(self._tracer, traced, guard, reason, self._options)

    def _make(
        self, traced: TracedGraph, guard: TraceGuard, reason: str, is_general: bool
    ) -> GraphProgram:
        """Return a program that runs as a graph."""
        program = GraphProgram(self._tracer, traced, guard, reason, is_general)
        program.fallback = self.fallback_reason
        return program

    def _find_guard(self) -> TraceGuard:
        """Return the guard of the programs that were traced in the present state, or make it."""
        for guard in dict.fromkeys(program.guard for program in self.programs):
            if guard.first_change() is None:
                return guard
        return TraceGuard(self._models, self._ops, self._is_training)

    # --- why ---

    def _reason_to_trace(self, forms: list[Any], before: list[Any] | None, epoch: int) -> str:
        """Return why there is no program for a batch.

        Args:
            forms: The forms of the batch.
            before: Those of the latest program that is still valid, if any is.
            epoch: The epoch.
        """
        if before is not None:
            return describe_difference(self.keys, forms, before)
        guard = None if self._latest is None else self._latest.guard
        items = self._active_items
        if guard is None:
            items, guard = self._history.latest.get(self._setting, (items, None))
        if guard is not None and items[1] == self._active_items[1]:
            # These ops were traced, perhaps by another set, with other settings.
            change = guard.first_change()
            if change is not None:
                self._warn_of_number(guard)
                return f"{change} has changed"
        # A dataset's own ops are active beside others, and do not replace them.
        if all(now != then for now, then in zip(self._active_items, items, strict=True)):
            return f"other ops are active from epoch {epoch} on"
        mode, warmup = self._setting
        return f"first step in mode '{mode}'" + (", warming up" if warmup else "")

    def _warn_of_number(self, guard: TraceGuard) -> None:
        """Warn if the change that a guard has found is the second one of the same number."""
        path = guard.changed_number()
        if path is None:
            return
        changes = self._history.changes
        changes[self._setting, path] += 1
        if changes[self._setting, path] == 2:
            warn(
                f"The ops of mode '{self._setting[0]}' are traced again, for the second time, "
                f"because {path} has changed. Each trace takes as long as many steps. Hold a "
                "number that changes in a tf.Variable, or pass it in the batch as a tensor."
            )

    def _describe_many(self, reason: str, forms: list[Any], before: list[Any] | None) -> str:
        """Return the warning that there are many traces, with the way to have fewer."""
        text = (
            f"The ops of mode '{self._setting[0]}' were traced {self.count} times, lastly "
            f"because {reason}. Each trace takes as long as many steps. Pass values that vary as "
            "tensors, or leave them out of the inputs of ops. network.traces lists all traces."
        )
        if self._compiles:
            return f"{text} XLA compiles each length by itself: pad batches to fewer shapes."
        if before is None or not FORMS.matches(any_size(forms), any_size(before)):
            return text
        for key, axis in sorted(changed_axes(self.keys, forms, before)):
            name = f"axis {axis} of '{key}'"
            if (key, axis) in self._fixed_axes:
                return f"{text} The ops must know the length of {name}."
            if (key, axis) not in self._axes_of(forms, self._dynamic.possibly_dynamic):
                more = self._dynamic.with_axis(key, axis)
                return f"{text} One trace does for any length of {name} with Network(..., {more})."
        return text

    # --- tracing ---

    def _trace_for_xla(self, exact: list[Any]) -> tuple[TracedGraph | None, str | None]:
        """Trace for the lengths of a batch, for which XLA compiles.

        Returns:
            The graph and None; or None and the reason, if an op fails. It may also fail where the
            ops are traced otherwise.
        """
        try:
            return self._tracer.trace(exact, for_xla=True), None
        except Exception as error:
            return None, f"tracing the ops for XLA failed: {_first_line(error)}"

    def _trace_widest(
        self, forms: list[Any], valid: list[GraphProgram]
    ) -> tuple[TracedGraph, set[Axis], str]:
        """Trace for these lengths, or for any of the axes that have had other ones.

        Some ops must know a length, and fail where it is open.

        Args:
            forms: The forms of a batch.
            valid: The programs that are valid, but for the lengths of their batches.

        Returns:
            The graph, the axes that are dynamic in it, and what the reason says of them.
        """
        axes = self._axes_to_open(forms, valid)
        first_axes = {axis for axis in axes if axis[1] == 0}
        size = "batch size" if first_axes else "shape of a sample"
        ways = {
            frozenset(axes): "",
            frozenset(first_axes): "one trace for each shape of a sample",
            frozenset(): f"one trace for each {size}",
        }
        first: Exception | None = None
        last: Exception | None = None
        for opened, meaning in ways.items():
            try:
                traced = self._tracer.trace(open_lengths(self.keys, forms, opened))
            except Exception as error:
                first = first or error
                last = error
                continue
            self._fixed_axes |= axes - opened
            remark = _describe_open_axes(opened)
            if last is not None:
                remark = f"; {meaning}, because with any an op failed: {_first_line(last)}"
            return traced, set(opened), remark
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

    def _axes_to_open(self, forms: list[Any], valid: list[GraphProgram]) -> set[Axis]:
        """Find the axes that may be dynamic, and have had other lengths."""
        allowed = self._axes_of(forms, self._dynamic.possibly_dynamic) - self._fixed_axes
        if self._tracer.has_workers:
            # Workers whose batches differ in size must trace equally often.
            return allowed
        opened = open_lengths(self.keys, forms, allowed)
        axes = self._axes_of(forms, self._dynamic.initially_dynamic) - self._fixed_axes
        for program in valid:
            inputs = program.signature.inputs
            if FORMS.matches(opened, inputs):
                axes |= changed_axes(self.keys, forms, inputs)
        return axes

    def _axes_of(self, forms: list[Any], axes_of: AxesOf) -> set[Axis]:
        """Return those axes of a batch that a function of a key and a rank returns."""
        return {
            (key, axis)
            for key, form in zip(self.keys, forms, strict=True)
            for slot in slots_of(form)
            if slot.shape is not None
            for axis in axes_of(key, len(slot.shape))
        }


def _describe_open_axes(axes: Collection[Axis]) -> str:
    if not axes:
        return ""
    numbers = sorted({axis for _, axis in axes})
    name = "axis" if len(numbers) == 1 else "axes"
    return f"; from now on any length of {name} {', '.join(map(str, numbers))} fits"


def _form_of(key: str, value: Any) -> Any:
    try:
        return KIND.form_of(value)
    except RecursionError as error:
        add_note(error, f"The value under '{key}' holds itself, or is nested too deeply.")
        raise


def _with_open_rows(part: Slot | Parts) -> Slot | Parts:
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
