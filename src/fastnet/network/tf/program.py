"""The ops of one opening as TensorFlow graphs: what is traced, when, and why."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet._nest import leaves_of
from fastnet._trace import Parts, Slot, TensorKind, Trace, TracedStep, map_form
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.model_update import ModelUpdate
from fastnet.backend.tf._internals import autograph_status, trace
from fastnet.backend.tf.graph import (
    KIND,
    UNKNOWN,
    as_graph_code,
    caller,
    forget_gradients,
    source_of,
)
from fastnet.backend.tf.lifting import Lifted
from fastnet.errors import add_note, describe_op
from fastnet.network.compile_options import CompileOptions
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.tf.compiled.step import CompiledStep, Compiler, Kinds
from fastnet.network.tf.forms import (
    Axis,
    any_size,
    covers,
    difference,
    open_lengths,
    other_lengths,
    slots_of,
)
from fastnet.network.tf.graph_state import GraphState
from fastnet.network.tf.open_axes import OpenAxes
from fastnet.network.updates import updates_in
from fastnet.types import Forward, State
from fastnet.util.warnings import warn

__all__ = ["InForce", "Program", "Record"]

# containers among them, whose items are looked at one by one
_STAYING = (str, bytes, bool, int, float, complex, type(None), list, tuple, MutableMapping)
# schedules that go round, between optimizers or frozen layers, need not trace anew each time
_MOST_STATES = 8
_MANY_TRACES = 8
# how many traces in a row the values of one key may ask for before somebody is told
_MANY_IN_A_ROW = 3

# Told why ops were traced or compiled, the seconds of both, why they were not compiled, and
# what was where it is not all.
Record = Callable[[str, float, float, str | None, str | None], None]

# the ids of what schedulers stand for, and of the ops
InForce = tuple[list[int], list[int]]


class _NoTensor:
    """A class without instances, so that no value of a batch passes for a tensor at first sight."""


def _updates_of(plan: ExecutionPlan) -> list[ModelUpdate]:
    """List the updates that a plan is bound to."""
    return [op.updater() for op in updates_in(plan.ops)] if plan.takes_gradients else []


class Program:
    """The ops of a plan, as graphs.

    Args:
        plan: The plan.
        state: The state of a context, for what is the same in all of them.
        record: Told of each trace, and of each compilation.
        latest: What was in force in the latest trace of each mode, warming up or not. The programs
            of a network share it.
        open_axes: The axes that a graph may leave open.
        options: How steps are compiled; None where they are not.

    Attributes:
        keys: What ops read from the batch, in the order of a step's forms.
        mode: The mode.
        traced: What the latest trace was made of, or None.
        open_axes: The axes that a graph may leave open.
        spread: Whether its steps are spread over several devices.
    """

    spread = False

    def __init__(
        self,
        plan: ExecutionPlan,
        state: State,
        record: Record,
        latest: dict[Hashable, InForce],
        open_axes: OpenAxes,
        options: CompileOptions | None = None,
    ) -> None:
        self.open_axes = open_axes
        self._compiler = None if options is None else self._make_compiler(options)
        # the keys whose values were warned of
        self.warned: set[str] = set()
        self.keys = sorted(plan.kernel.resolution.device_inputs.names())
        self.mode = str(state["mode"])
        self.traced: GraphState | None = None
        self.record = record
        self._ops = plan.ops
        self._models = plan.models
        self._latest = latest
        self._setting = state["mode"], state["warmup"]
        self._in_force = list(map(id, plan.scheduled)), list(map(id, plan.ops))
        self._epoch = int(state["epoch"])
        self._takes_gradients = plan.takes_gradients
        self._plan = plan.kernel_with(_in_graph)
        self._updates = _updates_of(plan)
        self._constant_state: dict[str, Any] = {
            key: state[key] for key in ("warmup", "mode", "req_grad", "eager") if key in state
        }
        self._look = partial(
            GraphState,
            plan.models,
            plan.ops,
            state["mode"] == "train" or plan.takes_gradients,
        )
        self._steps: list[_Static] = []
        # for all that ask before the first trace: an opening that is measured asks twice
        self._untraced: _Static | None = None

    def step_for_now(self) -> TracedStep:
        """Find the step for the ops and the models as they are now.

        Returns:
            The step, which traces where it must.
        """
        for static in reversed(self._steps):
            if static.state is not None and static.state.holds():
                # that which was used longest ago is the first to go, as among traces
                self._steps.remove(static)
                self._steps.append(static)
                return static.step
        if self._untraced is None:
            self._untraced = _Static(self)
        return self._untraced.step

    def rebind(self, plan: ExecutionPlan) -> None:
        """Trace again if a setting of an UpdateOp has replaced the update that was traced."""
        updates = _updates_of(plan)
        if updates != self._updates:
            self._updates = updates
            self._plan = plan.kernel_with(_in_graph)
            self._steps.clear()
            self._untraced = None

    def look(self) -> GraphState:
        """Look at what a graph would be made of.

        Returns:
            How it is now.
        """
        return self._look()

    def keep(self, static: _Static) -> None:
        """Keep what was traced.

        Args:
            static: The traces.
        """
        self._latest[self._setting] = self._in_force
        self.traced = static.state
        if static is self._untraced:
            self._untraced = None
        if static not in self._steps:
            while len(self._steps) >= _MOST_STATES:
                del self._steps[0]
            self._steps.append(static)

    def first_reason(self) -> str:
        """Return why there is no trace for the ops and the models as they are now.

        Returns:
            The reason, in words.
        """
        changes = "" if self.traced is None else self.traced.difference()
        if changes:
            return changes
        before = self._latest.get(self._setting, self._in_force)
        # a dataset's own ops are in force beside others, and not in their place
        if all(now != then for now, then in zip(self._in_force, before, strict=True)):
            return f"other ops are in force from epoch {self._epoch} on"
        return f"first step in mode '{self.mode}'" + (
            ", warming up" if self._constant_state["warmup"] else ""
        )

    def _make_compiler(self, options: CompileOptions) -> Compiler:
        def tell(reason: str, seconds: float, fallback: str | None, part: str | None) -> None:
            self.record(reason, 0.0, seconds, fallback, part)

        return Compiler(options, tell, self.spread)

    def trace(
        self, forms: list[Any], wide: bool, kinds: Kinds
    ) -> tuple[Trace, CompiledStep | None]:
        """Trace the ops.

        Args:
            forms: The form of the value of each key.
            wide: Whether axes were left open in them.
            kinds: The kinds of batches that were compiled before.

        Returns:
            The trace, and what it calls where steps are compiled.

        Raises:
            Exception: Whatever an op raises.
        """
        outputs: dict[str, Any] = {}
        # tf.function turns it off for all that is in it, but ops are to say so themselves
        self._autograph = autograph_status()

        def run(epoch: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            waiting = iter(tensors)

            def put(part: Slot | Parts) -> Any:
                if isinstance(part, Slot):
                    return next(waiting)
                return KIND.join(part.kind, [next(waiting) for _ in part.slots])

            batch = dict(zip(self.keys, map_form(forms, put), strict=True))
            known = leaves_of(batch)
            return self._take_out(self._run_ops(batch, epoch), set(map(id, known)), outputs)

        epoch = tf.TensorSpec((), tf.int32, name="epoch")
        specs = epoch, *_specs(self.keys, forms)
        concrete = self._concrete(run, specs)
        self._check_captures(concrete.graph)
        forget_gradients(concrete)
        call = caller(concrete, self._explain)
        if self._compiler is None:
            return Trace(call, forms, outputs, wide), None
        step = self._compiler.compile(concrete, call, kinds, self._op_in, self._explain, wide)
        return Trace(step.call, forms, outputs, wide), step

    def tracing(self, static: _Static, anew: bool) -> AbstractContextManager[None]:
        """Return what is entered while ops are traced.

        Args:
            static: The traces that this will be one of.
            anew: Whether it is the first for the ops and the models as they are now.
        """
        return nullcontext()

    def _concrete(self, run: Callable[..., Any], specs: tuple[tf.TensorSpec, ...]) -> Any:
        """Trace a function, once if all variables that it makes are its models'."""
        lifted = Lifted()

        def run_lifted(*args: tf.Tensor) -> Any:
            with lifted.scope():
                return run(*args)

        concrete = trace(run_lifted, specs)
        optimizers = [get_metadata(model, "current_optimizer") for model in self._models]
        if lifted.are_of(self._models, optimizers):
            return concrete
        # whatever makes others may do so each time
        return trace(run, specs)

    def _run_ops(self, batch: dict[str, Any], epoch: tf.Tensor) -> dict[str, Any]:
        state: State = {**self._constant_state, "epoch": epoch, "deferred": {}, "tape": None}
        with self._autograph:
            if not self._takes_gradients:
                return self._plan.run(batch, state)
            with tf.GradientTape(persistent=True) as tape:
                state["tape"] = tape
                return self._plan.run(batch, state)

    def _take_out(
        self, results: dict[str, Any], known: set[int], outputs: dict[str, Any]
    ) -> list[tf.Tensor]:
        """Take the tensors out of results, and refuse what a graph cannot give.

        Args:
            results: The results.
            known: The ids of what the batch holds, which is the same in each step.
            outputs: Filled with the form of each result.
        """
        found: list[tf.Tensor] = []
        strange: list[Any] = []

        def convert(value: Any) -> Any:
            tensor = KIND.convert(value)
            if tensor is not None:
                found.append(tensor)
            return tensor

        def split(value: Any) -> Any:
            parts = KIND.split(value)
            if parts is not None:
                found.extend(parts[1])
            else:
                strange.extend(_strangers(value, known))
            return parts

        readers = KIND.type_of_others, KIND.shape_of_others
        kind = TensorKind(_NoTensor, *readers, convert, split, KIND.join)
        graph = tf.compat.v1.get_default_graph()
        for key, value in results.items():
            writer = self._writer(key)
            if writer is None:
                continue  # what postprocessing will replace is still the batch's own
            op, place = writer
            first = len(found)
            outputs[key] = kind.form_of(value)
            if strange:
                raise TypeError(
                    f"{describe_op(op, place)} writes '{key}', which is, or holds, a value of type "
                    f"{type(strange[0]).__name__}. A graph cannot make such a value anew in each "
                    "step. Return tensors, or open the network with eager=True."
                )
            with tf.name_scope(_scope(op, place)):
                # one that an op holds on to is not of this graph before this
                found[first:] = [
                    one if getattr(one, "graph", None) is graph else tf.identity(one)
                    for one in found[first:]
                ]
        return found

    def _writer(self, key: str) -> tuple[Any, int] | None:
        for place, op in reversed(list(enumerate(self._ops))):
            if key in op.outputs:
                return op, place
        return None

    def _check_captures(self, graph: Any) -> None:
        """Refuse tensors that are left over from other graphs."""
        for outside, inside in graph.captures:
            if tf.is_symbolic_tensor(outside):
                users = [self._op_in(user.name) for user in inside.consumers()]
                user = next((one for one in users if one), "An op")
                raise TypeError(
                    f"{user} uses the tensor '{outside.name}' of another graph: an op has kept it "
                    "from an earlier trace, or it is of a tf.function around the step. Let the "
                    "tensors of a step come from its batch, and keep what outlives it in a "
                    "tf.Variable."
                )

    def _explain(self, error: BaseException, graph: Any) -> None:
        """Name the op in an error that was raised while a graph ran."""
        for node in re.findall(r"\{\{node ([^}]*)\}\}", str(error)):
            op = self._op_in(node)
            if op:
                add_note(error, f"Raised by {op}.")
                line = source_of(graph, node)
                if line:
                    add_note(error, line)
                return

    def _op_in(self, node: str) -> str | None:
        """Describe the op that a node of a graph is of, as its scope tells."""
        found = re.search(r"(?:^|[/_^])op(\d+)_\w*/", node)
        if not found or int(found[1]) >= len(self._ops):
            return None
        op = describe_op(self._ops[int(found[1])], int(found[1]))
        return f"the gradient of {op}" if "gradient_tape/" in node[: found.start(1)] else op


class _Static:
    """The traces of a program for one state of its ops and models.

    Attributes:
        state: What they were made of, or None before there is one.
    """

    def __init__(self, program: Program) -> None:
        self.step = TracedStep(program.keys, KIND, self._trace, context=("epoch",))
        self.state: GraphState | None = None
        self._program = program
        self._latest: list[Any] | None = None
        self._count = 0
        # the key whose values have asked for the latest traces, and for how many
        self._asking: tuple[str | None, int] = None, 0
        # axes whose lengths ops must know
        self._closed: set[Axis] = set()
        self._kinds = Kinds()

    def _trace(self, values: list[Any]) -> Trace:
        program = self._program
        started = time.perf_counter()
        exact = [_form_of(*entry) for entry in zip(program.keys, values, strict=True)]
        latest = self._latest
        key: str | None = None
        changes = "" if self.state is None else self.state.difference()
        if changes:
            # while the network is open: what was traced before it no longer stands for this
            self.step.traces = []
            self._closed = set()
            self._kinds = Kinds()
            reason = changes
        elif latest is None:
            reason = program.first_reason()
        else:
            key, reason = difference(program.keys, exact, latest)
        before = program.look()
        try:
            with program.tracing(self, anew=bool(changes) or latest is None):
                trace, step, remark = self._trace_widest(exact)
        finally:
            after = program.look()
            before.ran(after)
        reason += remark
        if trace.wide:
            self.step.traces = [
                one
                for one in self.step.traces
                if not (one.wide and covers(trace.inputs, one.inputs))
            ]
        self._latest = trace.inputs
        self._count += 1
        self.state = after
        program.keep(self)

        def record() -> None:
            seconds = time.perf_counter() - started
            compiling, fallback = (0.0, None) if step is None else step.first_outcome(reason)
            program.record(reason, seconds - compiling, compiling, fallback, None)

        _time_first_call(trace, step, record)
        for warning in (self._many(reason, exact, latest), self._always(key, exact, reason)):
            if warning:
                warn(warning)
        return trace

    def _trace_widest(self, exact: list[Any]) -> tuple[Trace, CompiledStep | None, str]:
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
        for place, (opened, meaning) in enumerate(ways):
            if place and opened == ways[place - 1][0]:
                continue
            try:
                forms = open_lengths(keys, exact, opened)
                trace, step = self._program.trace(forms, bool(opened), self._kinds)
            except Exception as error:
                first = first or error
                last = error
                continue
            self._closed |= axes - opened
            if last is None:
                return trace, step, _opening_text(opened)
            because = f"; {meaning}, because with any an op failed: {_first_line(last)}"
            return trace, step, because
        assert first is not None
        assert last is not None
        if _first_line(first) != _first_line(last):
            # a model that the first try has built in part fails otherwise the next time
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
        may = self._may_open(exact) - self._closed
        opened = open_lengths(keys, exact, may)
        axes: set[Axis] = set()
        for other in self.step.traces:
            if covers(opened, other.inputs):
                axes |= other_lengths(keys, exact, other.inputs)
        return axes

    def _may_open(self, forms: list[Any]) -> set[Axis]:
        allowed = self._program.open_axes
        return {
            (key, axis)
            for key, form in zip(self._program.keys, forms, strict=True)
            for slot in slots_of(form)
            if slot.shape is not None
            for axis in allowed.of(key, len(slot.shape))
        }

    def _many(self, reason: str, exact: list[Any], before: list[Any] | None) -> str | None:
        """Word a warning of many traces, when there are."""
        program = self._program
        if self._count != _MANY_TRACES:
            return None
        text = (
            f"The ops of mode '{program.mode}' were traced {self._count} times, lastly because "
            f"{reason}. Each trace takes as long as many steps. network.traces tells of all of "
            "them."
        )
        if before is None or not covers(any_size(exact), any_size(before)):
            return text
        for key, axis in sorted(other_lengths(program.keys, exact, before)):
            name = f"axis {axis} of '{key}'"
            if (key, axis) in self._closed:
                return f"{text} The ops must know the length of {name}."
            if (key, axis) not in self._may_open(exact):
                more = program.open_axes.with_axis(key, axis)
                return f"{text} One trace does for any length of {name} with Network(..., {more})."
        return text

    def _always(self, key: str | None, exact: list[Any], reason: str) -> str | None:
        """Word a warning of values that are other ones in each step."""
        program = self._program
        latest, count = self._asking
        if key is None or isinstance(exact[program.keys.index(key)], (Slot, Parts)):
            self._asking = None, 0
            return None
        self._asking = key, count + 1 if key == latest else 1
        if self._asking[1] < _MANY_IN_A_ROW or key in program.warned:
            return None
        program.warned.add(key)
        return (
            f"The values of '{key}' have asked for {_MANY_IN_A_ROW} traces in a row, lastly "
            f"because {reason}. Each trace takes as long as many steps. Let what varies be a "
            "tensor, or leave it out of what ops read."
        )


def _time_first_call(trace: Trace, step: CompiledStep | None, done: Callable[[], None]) -> None:
    """Have something run when a traced function was called for the first time."""
    call = trace.call

    def call_first(tensors: list[Any]) -> Any:
        trace.call = call if step is None else call_unsettled
        try:
            return trace.call(tensors)
        finally:
            done()

    def call_unsettled(tensors: list[Any]) -> Any:
        assert step is not None
        try:
            return step.call(tensors)
        finally:
            if step.is_settled:
                trace.call = step.call

    trace.call = call_first


def _opening_text(axes: set[Axis]) -> str:
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


def _in_graph(op: Any, place: int, forward: Forward) -> Forward:
    """Run an op's forward as code of a graph, under a name that errors and profiles show."""
    name = _scope(op, place)
    module = getattr(getattr(type(op), "forward", None), "__module__", None) or ""
    own = module.startswith("fastnet.") and not getattr(op, "calls_user_code", False)

    def run(data: Any, state: State) -> Any:
        with tf.name_scope(name):
            return as_graph_code(forward, convert=not own)(data, state)

    return run


def _scope(op: Any, place: int) -> str:
    return f"op{place}_{re.sub('[^A-Za-z0-9_]', '', type(op).__name__)}"


def _specs(keys: list[str], forms: list[Any]) -> list[tf.TensorSpec]:
    """Return what a graph takes, under names that errors show."""
    named = [
        (re.sub("[^A-Za-z0-9_]", "_", key), slot)
        for key, form in zip(keys, forms, strict=True)
        for slot in slots_of(form)
    ]
    return [
        tf.TensorSpec(_static(slot), tf.dtypes.as_dtype(slot.type), name=f"{name}_{number}")
        for number, (name, slot) in enumerate(named)
    ]


def _static(slot: Slot) -> list[int | None] | None:
    """Return the shape of a slot as far as a graph is to know it."""
    if slot.shape is None:
        return None
    return [None if length == UNKNOWN else length for length in slot.shape]


def _strangers(value: Any, known: set[int]) -> list[Any]:
    """List what a graph cannot hand out as it was when it was traced: the value, or what is in it.

    Args:
        value: No tensor. What is in a container, other than a set, is looked at for itself.
        known: The ids of what the batch holds.
    """
    if isinstance(value, (set, frozenset)):
        return [one for member in value for one in _strangers(member, known)]
    container = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return [] if container or isinstance(value, _STAYING) or id(value) in known else [value]


def _first_line(error: Exception) -> str:
    # a KeyError's own text is in quotes, its lines with it
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = str(text).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
