"""Runs the steps of a context in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import tensorflow as tf

from fastnet._execute import BoundPlan
from fastnet.backend.ranges import OpRanges
from fastnet.backend.tf._internals import profiler_is_on
from fastnet.network.context import NetworkContext, Runner
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.step import StepMeter, titles
from fastnet.network.tf.open_axes import OpenAxes
from fastnet.network.tf.program import Programs
from fastnet.network.tf.replicas import Replicas, compare_workers, merge_parts
from fastnet.network.tf.step_graph import prepare_optimizers
from fastnet.types import RunStep


class TFRunner(Runner):
    """Runs the steps of a context in TensorFlow, as graphs or eagerly."""

    def __init__(self, context: NetworkContext, programs: Programs, open_axes: OpenAxes) -> None:
        super().__init__(context)
        self._programs = programs
        self._open_axes = open_axes
        self._replicas: Replicas | None = None

    def open(self) -> None:
        """Find the devices and the workers."""
        plan, state = self.context.plan, self.context.state
        replicas = self._replicas = Replicas.of(plan.models)
        check_ops(plan, replicas)
        if state["mode"] == "train" and plan.takes_gradients and not state["warmup"]:
            compare_workers(self.context, replicas)
        # Leave the graph that the program may be tracing.
        with tf.init_scope():
            # A tensor, so that another epoch needs no other graph.
            state["epoch"] = tf.constant(state["epoch"], tf.int32)
        if self._is_eager:
            prepare_optimizers(plan, state)
        if self._is_plain and not plan.takes_gradients:
            state["tape"] = None

    def bind(self) -> BoundPlan:
        """Bind the plan, with a tape around the ops of each step where gradients are taken."""
        plan, state = self.context.plan, self.context.state
        if not plan.takes_gradients:
            return BoundPlan(plan.kernel, state if self._is_plain else {**state, "tape": None})
        self.context_row = "tape", "gradient tape"
        return BoundPlan(plan.kernel, {**state}, _make_tape, "tape")

    def is_profiled(self) -> bool:
        """Return whether TensorFlow's profiler is on."""
        return profiler_is_on()

    def ranges(self) -> OpRanges:
        """Return the object that names the ops to TensorFlow's profiler."""
        names = titles(self.context.plan.ops)
        return OpRanges(names, tf.profiler.experimental.Trace, profiler_is_on)

    def merge_replicas(self, run: RunStep) -> RunStep:
        """Return a step whose results are joined over the replicas of this process."""
        if self._replicas is None:
            return run
        if self.context.plan.slicers:
            # Slicers cut the joined batch, and each minibatch is split.
            return lambda batch: run(merge_parts(batch))
        return lambda batch: merge_parts(run(batch))

    def step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch."""
        if self._is_plain:
            return super().step(meter)
        step, programs = self._step, self._programs
        if meter is None:
            return step
        log = meter.log
        row = meter.row("graph", self._row_name)
        traced = meter.trace_stamper(meter.row("rest", "other"))

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            programs.on_trace = traced
            try:
                result = step(batch)
            finally:
                programs.on_trace = None
            log.stamp(row)
            return result

        return run

    @property
    def _row_name(self) -> str:
        if self._replicas is not None:
            return "graphs of the devices"
        return "compiled step" if self._programs.compiles else "graph"

    @property
    def _is_plain(self) -> bool:
        """Whether steps run eagerly on one device."""
        return self._replicas is None and self._is_eager

    @cached_property
    def _is_eager(self) -> bool:
        asked = self.context.state["eager"] and not self.context.transforms
        return asked or bool(tf.config.functions_run_eagerly())

    @cached_property
    def _step(self) -> RunStep:
        replicas = self._replicas
        step = self.bound.step if replicas is None else self._eager_step(replicas)
        if not self._is_eager:
            step = self._static_step(step)
        if replicas is None:
            return step
        plan = self.context.plan
        keys = plan.kernel.resolution.device_inputs.names()
        trains = self.context.state["mode"] == "train" and plan.takes_gradients
        return replicas.split(step, keys, plan.slicers, trains)

    def _eager_step(self, replicas: Replicas) -> RunStep:
        plan = self.context.plan
        kernel, state = plan.kernel, {**self.context.state, "tape": None}
        make_tape = _make_tape if plan.takes_gradients else None
        keys = kernel.resolution.device_inputs.names()

        def run_part(part: dict[str, Any]) -> dict[str, Any]:
            return BoundPlan(kernel, {**state, "deferred": {}}, make_tape, "tape").run(part)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            missing = kernel.missing(batch)
            if missing is not None:
                raise missing
            return {**batch, **replicas.run(run_part, {key: batch[key] for key in keys})}

        return run

    def _static_step(self, eager: RunStep) -> RunStep:
        kernel, state = self.context.plan.kernel, self.context.state
        program = self._programs.find(self.context, self._replicas, self._open_axes)
        traced = program.current_step()

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return traced.step(batch, state)
            except KeyError as error:
                missing = kernel.missing(batch)
                if missing is None:
                    raise
                raise missing from error.__cause__

        if not self.context.transforms:
            return run

        def run_known(batch: Mapping[str, Any]) -> dict[str, Any]:
            return run(batch) if traced.fits(batch) else eager(batch)

        return run_known


def check_ops(plan: ExecutionPlan, replicas: Replicas | None) -> None:
    """Refuse ops that cannot run on several devices."""
    if replicas is not None and plan.takes_gradients:
        replicas.check(plan.ops)


def _make_tape() -> tf.GradientTape:
    return tf.GradientTape(persistent=True)
