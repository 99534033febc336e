"""The traced steps of the same ops in TensorFlow: decides what to trace, and does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from fastnet._trace import FORMS
from fastnet.backend.tf.models import needs_batch_size, warn_of_masks
from fastnet.backend.tf.tensor_adapter import TENSOR_ADAPTER
from fastnet.errors import add_note
from fastnet.network.compile_options import CompileOptions
from fastnet.network.dynamic_axes import DynamicAxes
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_limits import MANY_TRACES, MAX_TRACES
from fastnet.network.program_set import OnProgram, ProgramSet
from fastnet.network.tf.forms import (
    Axis,
    changed_axes,
    describe_difference,
    has_unknown_lengths,
    select_axes,
    with_all_axes_dynamic,
    with_dynamic_axes,
    with_dynamic_rows,
)
from fastnet.network.tf.node_names import NodeNames
from fastnet.network.tf.program import GraphProgram
from fastnet.network.tf.replicas import Replicas
from fastnet.network.tf.step_tracer import StepTracer, TracedGraph
from fastnet.network.tf.trace_guard import (
    ActiveItems,
    TraceGuard,
    TraceHistory,
    tracing,
)
from fastnet.network.tf.xla_program import XlaProgram, reason_not_to_compile
from fastnet.network.trace_records import Records, describe_step, report_if_slow
from fastnet.types import State
from fastnet.util.warnings import warn


class GraphProgramSet(ProgramSet[GraphProgram]):
    """The traced steps of the ops of a plan.

    Beside the compiled programs, `MAX_TRACES` graphs with static axes are kept, and as many with
    dynamic ones.

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
        super().__init__(0 if options is None else options.max_programs, records)
        self._names = NodeNames(plan.ops, plan.models)
        self._tracer = StepTracer(plan, state, replicas, self._names)
        self.keys = self._tracer.keys
        self._replicas = replicas
        self._options = options
        self._dynamic = dynamic
        self._history = history
        self._models, self._ops = plan.models, plan.ops
        self._uses_optimizers = plan.uses_optimizers(state["mode"])
        self._setting = state["mode"], bool(state["warmup"])
        self._active_items = ActiveItems(list(map(id, plan.scheduled)), list(map(id, plan.ops)))
        # The program that was traced last.
        self._last_traced: GraphProgram | None = None
        # Axes whose lengths ops must know, in the state that the latest program was traced in.
        self._static_axes: set[Axis] = set()

    def forget_comparisons(self) -> None:
        """Compare the ops and models again with what each program was traced from."""
        for program in self.programs:
            program.guard.forget_comparison()

    def trace(self, batch: Mapping[str, Any], epoch: int) -> GraphProgram:
        """Trace a program for a batch that no program is valid for.

        Args:
            batch: The batch.
            epoch: The epoch.

        Raises:
            Exception: Any error of an op.
        """
        batch_forms = [_form_of(key, batch[key]) for key in self.keys]
        warn_of_masks({key: batch[key] for key in self.keys})
        # Graphs take any number of rows of sparse and ragged values; XLA does not.
        graph_forms = list(map(with_dynamic_rows, batch_forms))
        valid = [program for program in self.programs if program.difference() is None]
        is_change = bool(self.programs) and not valid
        self._note_static_axes(batch_forms, is_new_state=not valid)
        nearest = self._last_traced if self._last_traced in valid else next(iter(valid), None)
        traced_forms = None if nearest is None else nearest.signature.inputs
        if traced_forms is None:
            reason = self._describe_change() or self._reason_for_first_step(epoch)
        else:
            reason = describe_difference(self.keys, batch_forms, traced_forms)

        program: GraphProgram | None = None
        # Why XLA does not compile the program although the network compiles.
        fallback = self.fallback_reason
        # XLA compiles for known lengths alone; a tf.function around the step leaves some unknown.
        is_unknown = has_unknown_lengths(batch_forms)
        if self._options is not None and not is_unknown:
            fallback = fallback or self.make_room_or_refuse(reason, is_change)
            if fallback is None:
                program, fallback = self._trace_for_xla(batch_forms, reason, self._options)
        if program is None:
            axes = self._axes_to_make_dynamic(graph_forms, valid)
            if self._options is not None and is_unknown and fallback is None:
                # The graph is for unknown lengths alone: batches of known ones are compiled.
                graph_forms, axes = batch_forms, set()
            program = self._trace_as_graph(graph_forms, axes, reason, fallback)
        self.stop_compiling(fallback)

        self._last_traced = program
        self._history.latest[self._setting] = self._active_items, program.guard
        self.add(program, is_change)
        if self.count == MANY_TRACES:
            warn(self._describe_many(program.reason, graph_forms, traced_forms))
        return program

    def add(self, program: GraphProgram, is_change: bool = False) -> None:
        """Add a program that was just made, in place of those that it makes superfluous."""
        super().add(program, is_change)
        inputs = program.signature.inputs
        for narrower in self.programs:
            is_covered = (
                narrower is not program
                and narrower.has_dynamic_axes
                and narrower.guard is program.guard
                and FORMS.matches(inputs, narrower.signature.inputs)
            )
            if is_covered:
                self.discard(narrower)
        for has_dynamic_axes in (False, True):
            graphs = [
                graph
                for graph in self.programs
                if not graph.is_compiled and graph.has_dynamic_axes is has_dynamic_axes
            ]
            for surplus in graphs[MAX_TRACES:]:
                self.discard(surplus)

    def run_and_record(
        self,
        program: GraphProgram,
        batch: Mapping[str, Any],
        inputs: list[Any],
        state: State,
        on_program: OnProgram | None,
        trace_started: float | None = None,
    ) -> dict[str, Any]:
        """Run the first step of a program, which XLA compiles if it is to, and record it.

        Args:
            program: The program.
            batch: The batch.
            inputs: The epoch and the tensors of the batch.
            state: The state of the session.
            on_program: Called after the program was traced or compiled.
            trace_started: When tracing the program began; None if that was in an earlier step, in
                which it was not compiled.
        """
        compile_seconds = 0.0  # It stays 0 if the program was not compiled now.
        reason, started = program.reason, trace_started
        if started is None:
            reason, started = f"{reason}; compiled in a later step", perf_counter()
        report = report_if_slow(
            f"compiling {describe_step(self._models, self._setting[0])} with XLA",
            self.records.last_compilation(),
        )
        refusal = self.fallback_reason
        try:
            result, compile_seconds = program.run_first(batch, inputs, refusal, report)
            self.stop_compiling(program.fallback)
            return result
        finally:
            if compile_seconds or trace_started is not None:
                seconds = perf_counter() - started - compile_seconds
                self.records.add(
                    state,
                    reason,
                    seconds,
                    compile_seconds,
                    fallback=program.fallback,
                    unverified=program.unverified,
                )
                if on_program is not None:
                    on_program(reason, seconds, compile_seconds)

    # --- reasons ---

    def _describe_change(self) -> str | None:
        """Describe what has changed since the last trace of the same ops; None if nothing has.

        If it is the second change of the same number, a warning says how to avoid it.
        """
        items, guard = self._last_trace()
        if guard is None or items.ops != self._active_items.ops:
            return None
        change = guard.first_change()
        if change is None:
            return None
        if change.is_number:
            counts, key = self._history.changes, (self._setting, change.path)
            counts[key] += 1
            if counts[key] == 2:
                warn(
                    f"The ops of mode '{self._setting[0]}' are traced again, for the second time, "
                    f"because {change.description}. Each trace takes as long as many steps. Hold a "
                    "number that changes in a tf.Variable, or pass it in the batch as a tensor."
                )
        return change.description

    def _reason_for_first_step(self, epoch: int) -> str:
        """Return why there is no program yet for the ops."""
        # If scheduled values stay the same, the ops differ only because of the dataset.
        last, _ = self._last_trace()
        active = self._active_items
        if last.scheduled != active.scheduled and last.ops != active.ops:
            return f"other ops are active from epoch {epoch} on"
        mode, warmup = self._setting
        return f"first step in mode '{mode}'" + (", warming up" if warmup else "")

    def _last_trace(self) -> tuple[ActiveItems, TraceGuard | None]:
        """Return the active items and the guard of the last trace of this set.

        If it has traced nothing, they are those of the last trace of the same mode; if there was
        none, the present items and None.
        """
        if self._last_traced is not None:
            return self._active_items, self._last_traced.guard
        return self._history.latest.get(self._setting, (self._active_items, None))

    def _describe_many(self, reason: str, forms: list[Any], traced_forms: list[Any] | None) -> str:
        """Return the warning that there are many traces, with the way to have fewer."""
        text = (
            f"The ops of mode '{self._setting[0]}' were traced {self.count} times, most recently "
            f"because {reason}. Each trace takes as long as many steps; network.traces lists them."
        )
        if traced_forms is not None and FORMS.matches(
            with_all_axes_dynamic(forms), with_all_axes_dynamic(traced_forms)
        ):
            if self._options is not None and self.fallback_reason is None:
                return f"{text} XLA compiles each length by itself: pad batches to fewer shapes."
            for key, axis in sorted(changed_axes(self.keys, forms, traced_forms)):
                name = f"axis {axis} of '{key}'"
                if (key, axis) in self._static_axes:
                    return f"{text} The ops must know the length of {name}."
                if (key, axis) not in select_axes(self.keys, forms, self._dynamic.possibly_dynamic):
                    setting = f"Network(..., {self._dynamic.with_axis(key, axis)})"
                    return f"{text} One trace serves any length of {name} with {setting}."
        return f"{text} Pass values that vary as tensors, or leave them out of the inputs of ops."

    # --- tracing ---

    def _trace_for_xla(
        self, batch_forms: list[Any], reason: str, options: CompileOptions
    ) -> tuple[GraphProgram | None, str | None]:
        """Trace for the lengths of a batch, for which XLA compiles.

        Returns:
            The program, and None if XLA can compile it, else the reason why it runs as a graph; or
            None and the reason, if an op fails. It may fail in a trace without XLA, too.
        """
        try:
            with tracing(self._ops, self._models):
                traced = self._tracer.trace(batch_forms, for_xla=True)
        except Exception as error:
            return None, f"tracing the ops for XLA failed: {_first_line(error)}"
        guard = self._find_guard()
        is_replicated = self._replicas is not None and self._replicas.count > 1
        problem = reason_not_to_compile(traced, self._names, options, is_replicated)
        if problem is not None:
            return GraphProgram(self.keys, self._names, traced, guard, reason, problem), problem
        warn_if_slower = partial(self.records.warn_if_slower, self._setting[0])
        program = XlaProgram(self.keys, self._names, traced, guard, reason, options, warn_if_slower)
        return program, None

    def _trace_as_graph(
        self, forms: list[Any], axes: set[Axis], reason: str, fallback: str | None
    ) -> GraphProgram:
        """Trace with some axes dynamic, or with fewer.

        Some ops must know a length, and fail where its axis is dynamic.

        Args:
            forms: The forms of a batch.
            axes: The axes that are to be dynamic.
            reason: Why the ops are traced.
            fallback: Why XLA does not compile them although the network compiles, or None.
        """
        with tracing(self._ops, self._models):
            traced, dynamic_axes, remark = self._trace_with_most_axes(forms, axes)
        return GraphProgram(
            self.keys,
            self._names,
            traced,
            self._find_guard(),
            reason + remark,
            fallback,
            has_dynamic_axes=bool(dynamic_axes),
        )

    def _trace_with_most_axes(
        self, forms: list[Any], axes: set[Axis]
    ) -> tuple[TracedGraph, set[Axis], str]:
        """Trace with some axes dynamic, or if an op fails, with fewer.

        Returns:
            The graph, the axes that are dynamic in it, and a remark on them for the reason.
        """
        batch_axes = {(key, axis) for key, axis in axes if axis == 0}
        attempts: list[set[Axis]] = []
        for dynamic_axes in (axes, batch_axes, set[Axis]()):
            if dynamic_axes not in attempts:
                attempts.append(dynamic_axes)
        errors: list[Exception] = []
        for dynamic_axes in attempts:
            try:
                traced = self._tracer.trace(with_dynamic_axes(self.keys, forms, dynamic_axes))
            except Exception as error:
                errors.append(error)
                continue
            self._static_axes |= axes - dynamic_axes
            if not errors:
                return traced, dynamic_axes, _describe_dynamic_axes(dynamic_axes)
            is_batch_size = batch_axes and not dynamic_axes
            static_part = "batch size" if is_batch_size else "shape of a sample"
            return (
                traced,
                dynamic_axes,
                f"; one trace for each {static_part}, because an op failed with a dynamic one: "
                f"{_first_line(errors[-1])}",
            )
        first, last = errors[0], errors[-1]
        if _first_line(first) != _first_line(last):
            # A model that the first attempt has partly built fails differently the next time.
            add_note(last, f"Before that, with dynamic axes: {_first_line(first)}")
        add_note(
            last,
            "Raised while the ops were traced into a graph. To run and debug them one by one, "
            "enter the network by `with network(mode, epoch, eager=True)`.",
        )
        raise last

    def _axes_to_make_dynamic(self, forms: list[Any], valid: list[GraphProgram]) -> set[Axis]:
        """Find the axes to make dynamic.

        These are those that `dynamic` names, and those allowed that have had other lengths; with
        several workers all that are allowed.
        """
        allowed = select_axes(self.keys, forms, self._dynamic.possibly_dynamic) - self._static_axes
        if self._replicas is not None and self._replicas.has_workers:
            # Workers whose batches differ in size must trace equally often.
            return allowed
        widest_forms = with_dynamic_axes(self.keys, forms, allowed)
        axes = select_axes(self.keys, forms, self._dynamic.initially_dynamic) - self._static_axes
        for program in valid:
            inputs = program.signature.inputs
            if FORMS.matches(widest_forms, inputs):
                axes |= changed_axes(self.keys, forms, inputs) & allowed
        return axes

    def _note_static_axes(self, batch_forms: list[Any], is_new_state: bool) -> None:
        """Note the axes that models must know; forget those of ops in a former state."""
        if is_new_state:
            self._static_axes = set()
        if any(map(needs_batch_size, self._models)):
            self._static_axes |= select_axes(self.keys, batch_forms, lambda key, rank: {0})

    def _find_guard(self) -> TraceGuard:
        """Return the guard of the programs that were traced in the present state, or make it."""
        for guard in dict.fromkeys(program.guard for program in self.programs):
            if guard.first_change() is None:
                return guard
        return TraceGuard(self._models, self._ops, self._uses_optimizers)


def _describe_dynamic_axes(axes: Collection[Axis]) -> str:
    if not axes:
        return ""
    numbers = sorted({axis for _, axis in axes})
    name = "axis" if len(numbers) == 1 else "axes"
    return f"; from now on any length of {name} {', '.join(map(str, numbers))} fits"


def _form_of(key: str, value: Any) -> Any:
    try:
        return TENSOR_ADAPTER.form_of(value)
    except RecursionError as error:
        add_note(error, f"The value under '{key}' holds itself, or is nested too deeply.")
        raise


def _first_line(error: Exception) -> str:
    # The text of a KeyError is in quotes, including its line breaks.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = str(text).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
