"""Networks of Keras models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from fastnet._execute import Plan, RecordedPlan
from fastnet.backend.convert import map_leaves
from fastnet.backend.facts import fact, name_of
from fastnet.backend.tf.copying import copy_model
from fastnet.backend.tf.foreign import ARRAYS, FOREIGN
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.ranges import op_ranges, profiler_is_on
from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.tensors import EAGER
from fastnet.network.base import BaseNetwork, Step, _Opening
from fastnet.network.layout import Adopt, Layout
from fastnet.network.metering import Ranges, StepMeter, titles
from fastnet.network.open_axes import Axes, OpenAxes
from fastnet.network.program import InForce, Program, TraceRecord
from fastnet.network.replica_program import ReplicaProgram
from fastnet.network.replica_slicer import ReplicaSlicer
from fastnet.network.replicas import Replicas, combine, is_distributed, join_values, to_global
from fastnet.network.spreading import spread
from fastnet.types import State

__all__ = ["TFNetwork"]

# the last ones tell why; a program that traces without end must not fill the memory with reasons
_MOST_RECORDS = 256


class TFNetwork(BaseNetwork):
    """A network whose ops run in TensorFlow.

    The ops are traced into a graph in the first step, and each later step calls the graph: Python
    in an op's `forward` (a print, a counter, a random number of numpy) runs while it is traced, and
    not in each step. Open the network with ``eager=True`` to run op by op instead.

    The first trace is for batches of just the shapes that it was made with. When a batch of another
    size comes, a second one is made for batches of any size: while it is, ``x.shape[0]`` is None,
    and ``x.shape[0] == 8`` false; ``tf.shape(x)[0]`` is the size. Another length of any other axis
    is a trace of its own, unless `open_axes` says that one does for all; of many the 16 last used
    are kept. Values in a batch that are no tensors and no arrays (strings, ints, None, objects with
    their attributes, the order of a dict) are constants of the graph, so that another value is
    another trace. What a graph was made of is compared at each opening: ops and their attributes,
    layers, variables and optimizers that were changed or replaced count from the next opening on.
    A counter in an op is no change where it was tracing that counted; it is one where the op ran by
    itself, or a `tf.py_function` in it. Globals that a function reads, and what is in objects that
    are none of these, are not looked at.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        postprocessing: Ops on numpy arrays, for whole batches, which run on the CPU after the rest.
        slicers: What cuts a batch into minibatches and joins their results.
        open_axes: The axes of which one trace may serve any length, once there was a second one: an
            axis or several for the tensors of all keys, or a dict of keys to such, where the others
            keep axis 0. An axis below 0 counts from the last. None for axis 0, () for no axis.
            Values of several tensors (ragged and sparse ones) always leave open how much they hold.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer.
        TypeError: If `open_axes` holds something else.
        ValueError: If only some models have mixed precision, or a postprocessing op would drop or
            make batches.

    >>> import tensorflow as tf
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TFNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": tf.constant([1.0, 2.0])})["y"].numpy().tolist()
    [2.0, 4.0]
    >>> [trace.reason for trace in network.traces]
    ["first step in mode 'infer'"]
    """

    def __init__(
        self,
        ops: Any,
        postprocessing: Any = None,
        slicers: Any = None,
        open_axes: Axes | None = None,
    ) -> None:
        self._open_axes = OpenAxes(open_axes)
        super().__init__(
            target_type="tf",
            device=None,
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )

    def _begin(self) -> None:
        super()._begin()
        self._records: deque[TraceRecord] = deque(maxlen=_MOST_RECORDS)
        self._programs: WeakValueDictionary[Any, Program] = WeakValueDictionary()
        self._latest: dict[Hashable, InForce] = {}
        # of the opening: what it is spread over, and whether its batches are whole
        self._replicas: Replicas | None = None
        self._spreads = False
        # told of traces in the step that is being measured
        self._traced: Callable[[str, float], None] | None = None

    def _require_apart(self, op: Any) -> None:
        for value in vars(op).values():
            held = value.values() if isinstance(value, dict) else value
            for one in held if isinstance(value, (dict, list, tuple)) else [value]:
                for model in self.models:
                    parts = [*all_layers(model)[1:], *model.variables]
                    if any(one is part for part in parts):
                        raise ValueError(
                            f"{type(op).__name__} holds '{one.name}', a part of the model "
                            f"'{name_of(model)}', which Keras would save by itself, so that the "
                            "two were not one any more; hold the model and look it up there"
                        )

    def _copy_models(self, memo: dict[int, Any]) -> None:
        for model in self.models:
            copy_model(model, memo)

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """When ops were traced and why, the last of many; each says how many there were with it."""
        return tuple(self._records)

    def _adoption(self) -> Adopt:
        return EAGER, FOREIGN, ARRAYS

    def _check_ops(self, layout: Layout) -> None:
        replicas = Replicas.in_force()
        if replicas is not None and layout.takes_gradients:
            replicas.check(layout.ops)

    def _enter_models(self, opening: _Opening) -> None:
        self._replicas = Replicas.in_force()
        self._check_ops(opening.layout)
        # a graph that the program is in the middle of tracing has no part in this
        with tf.init_scope():
            # a tensor, so that another epoch is no other graph
            opening.state["epoch"] = tf.cast(opening.state["epoch"], tf.int32)
            if _updates(opening):
                for model in opening.layout.models:
                    prepare_optimizer(fact(model, "current_optimizer"), model)

    def _exit_models(self, opening: _Opening) -> None:
        self._replicas = None

    def _make_step(self, opening: _Opening) -> Step | None:
        if not self._steps_eagerly(opening):
            return self._step_of(opening)
        if not opening.layout.takes_gradients:
            opening.state["tape"] = None
        return None

    def _recorded(self, opening: _Opening) -> Plan | RecordedPlan:
        plan = opening.layout.plan
        if not opening.layout.takes_gradients:
            return plan
        return RecordedPlan(plan, partial(tf.GradientTape, persistent=True))

    def _step_state(self, opening: _Opening) -> State:
        if not (self._steps_eagerly(opening) and opening.layout.takes_gradients):
            return opening.state
        # what UpdateOps find out of their models, for the later steps of the opening
        return {**opening.state, "trained": {}}

    def _steps_eagerly(self, opening: _Opening) -> bool:
        """Tell whether steps run op by op, on one device."""
        return self._replicas is None and _runs_eagerly(opening)

    def _step_of(self, opening: _Opening) -> Step:
        replicas = self._replicas
        step = self._eager_step(opening, replicas)
        if not _runs_eagerly(opening):
            step = self._static_step(opening, replicas, step)
        return step if replicas is None else self._spread_step(step, opening, replicas)

    def _make_metered_step(self, opening: _Opening, meter: StepMeter) -> Step:
        if self._steps_eagerly(opening):
            return self._metered_eager_step(opening, meter)
        step, log = self._step_of(opening), meter.log
        row = meter.row("graph", "graph" if self._replicas is None else "graphs of the devices")

        def traced(reason: str, seconds: float) -> None:
            # it ends here, in the middle of a step
            log.stamp_at(row, perf_counter() - seconds)
            log.stamp(meter.row("trace", f"trace: {reason}"))

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            self._traced = traced
            try:
                result = step(batch)
            finally:
                self._traced = None
            log.stamp(row)
            return result

        return run

    def _metered_eager_step(self, opening: _Opening, meter: StepMeter) -> Step:
        plan, state = opening.layout.plan, opening.step_state
        first, log = meter.plan_rows(plan), meter.log
        row = meter.row("tape", "gradient tape")
        takes_gradients = opening.layout.takes_gradients

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            around = first, meter.before, meter.after
            if not takes_gradients:
                return plan.step_timed(batch, state, log, *around)
            with tf.GradientTape(persistent=True) as tape:
                log.stamp(row)
                result = plan.step_timed(batch, {**state, "tape": tape}, log, *around)
            log.stamp(row)
            return result

        return run

    def _is_profiled(self) -> bool:
        return profiler_is_on()

    def _ranges(self, opening: _Opening) -> Ranges:
        return op_ranges(partial(titles, opening.layout.ops))

    def _spread_step(self, step: Step, opening: _Opening, replicas: Replicas) -> Step:
        keys = opening.layout.plan.resolution.device_inputs.names()
        slicers = opening.layout.slicers

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            return spread(step, batch, replicas, keys, slicers) if self._spreads else step(batch)

        return run

    def _eager_step(self, opening: _Opening, replicas: Replicas | None) -> Step:
        plan, state = opening.layout.plan, {**opening.state, "tape": None}
        recorded = self._recorded(opening)
        if replicas is None:
            return partial(recorded.step, state=state)

        keys = opening.layout.plan.resolution.device_inputs.names()
        # what slicers have cut is put together for each device by itself
        join = replicas.bundle if opening.layout.slicers else join_values

        def run_replicas(batch: Mapping[str, Any]) -> dict[str, Any]:
            missing = plan.missing(batch)
            if missing is not None:
                raise missing
            read = {key: batch[key] for key in keys}
            results = replicas.run(
                lambda part: recorded.predict(part, {**state, "deferred": {}}), read
            )
            return {**batch, **combine(results, join)}

        return run_replicas

    def _static_step(self, opening: _Opening, replicas: Replicas | None, eager: Step) -> Step:
        layout, state = opening.layout, opening.state
        program = self._find_program(opening, replicas)
        traced = program.step_for_now()
        plan = layout.plan

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return traced.step(batch, state)
            except KeyError as error:
                missing = plan.missing(batch)
                if missing is None:
                    raise
                raise missing from error.__cause__

        if not opening.transforms:
            return run

        def run_known(batch: Mapping[str, Any]) -> dict[str, Any]:
            return run(batch) if traced.fits(batch) else eager(batch)

        return run_known

    def _find_program(self, opening: _Opening, replicas: Replicas | None) -> Program:
        """Find the graphs of an opening: layouts of the same ops share them."""
        layout, state = opening.layout, opening.state
        returned = layout.plan.resolution.returned
        key = (
            state["mode"],
            state["warmup"],
            tuple(map(id, layout.ops)),
            frozenset(returned.names()),
            # another one where what the ops say of themselves was read anew
            id(returned.table),
            None if replicas is None else (id(replicas.strategy), bool(layout.slicers)),
        )
        program = layout.programs.get(key) or self._programs.get(key)
        if program is None:
            state = {**state, "eager": False}
            if replicas is None:
                program = Program(layout, state, self._recorder(), self._latest, self._open_axes)
            else:
                shared = self._recorder(), self._latest, self._open_axes
                joins = not layout.slicers
                program = ReplicaProgram(layout, state, replicas, *shared, joins=joins)
            self._programs[key] = program
        layout.programs[key] = program
        return program

    def _recorder(self) -> Callable[[str, float], None]:
        def record(reason: str, seconds: float) -> None:
            last = self._records[-1].number if self._records else 0
            state = self.ctx_state
            epoch = int(state["epoch"]) if "epoch" in state else 0
            self._records.append(
                TraceRecord(last + 1, str(state.get("mode")), epoch, reason, seconds)
            )
            if self._traced is not None:
                self._traced(reason, seconds)

        return record

    def _fit_slicers(self, slicers: list[Any]) -> list[Any]:
        if self._replicas is None:
            return slicers
        return [ReplicaSlicer.around(slicer, self._replicas) for slicer in slicers]

    def _whole(self, step: Step) -> Step:
        return step if self._replicas is None else lambda batch: to_global(step(batch))

    def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
        parts: list[Any] = []
        if self._replicas is not None:
            map_leaves(batch, parts.append)
        self._spreads = self._replicas is not None and not any(map(is_distributed, parts))
        try:
            return super()._do_transform(batch)
        finally:
            self._spreads = False


def _runs_eagerly(opening: _Opening) -> bool:
    asked = opening.state["eager"] and not opening.transforms
    return asked or bool(tf.config.functions_run_eagerly())


def _updates(opening: _Opening) -> bool:
    return opening.state["mode"] == "train" or opening.layout.takes_gradients
