"""Runs the steps of a context in TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import tensorflow as tf

from fastnet._execute import BoundPlan
from fastnet._nest import leaves_of
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.ranges import OpRanges
from fastnet.backend.tf import processes
from fastnet.backend.tf.ranges import op_ranges, profiler_is_on
from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.workers import Together
from fastnet.network.context import NetworkContext, Runner
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.step import StepMeter, titles
from fastnet.network.tf.open_axes import OpenAxes
from fastnet.network.tf.plans import plan_of, require_strategy
from fastnet.network.tf.program import Programs
from fastnet.network.tf.replica_slicer import ReplicaSlicer
from fastnet.network.tf.replicas import Replicas, combine, is_distributed, join_values, to_global
from fastnet.network.tf.spreading import spread
from fastnet.types import RunStep

__all__ = ["TFRunner", "check_ops"]


class TFRunner(Runner):
    """Runs the steps of a context in TensorFlow, as graphs or eagerly."""

    def __init__(self, context: NetworkContext, programs: Programs, open_axes: OpenAxes) -> None:
        super().__init__(context)
        self.spreads = False
        self._programs = programs
        self._open_axes = open_axes
        self._replicas: Replicas | None = None
        self._together: Together | None = None
        # what the program was in the middle of handling when it opened the network
        self._handled: BaseException | None = None

    def open(self) -> None:
        """Find the devices and the workers, and let optimizers make their variables."""
        self._replicas = Replicas.in_force()
        plan, state = self.context.plan, self.context.state
        check_ops(plan, self._replicas)
        if state["mode"] == "train" and plan.takes_gradients:
            self._come_together(self._replicas)
        # a graph that the program is in the middle of tracing has no part in this
        with tf.init_scope():
            # a tensor, so that another epoch is no other graph
            state["epoch"] = tf.constant(state["epoch"], tf.int32)
            if state["mode"] == "train" or plan.takes_gradients:
                for model in plan.models:
                    prepare_optimizer(get_metadata(model, "current_optimizer"), model)
        if self._is_plain and not plan.takes_gradients:
            state["tape"] = None

    def close(self) -> None:
        """Leave the other workers as they leave."""
        together, self._together = self._together, None
        if together is not None:
            error = sys.exc_info()[1]
            together.end(None if error is self._handled else error)

    def _come_together(self, replicas: Replicas | None) -> None:
        """Wait for the workers that each step waits for, and see that they run the same."""
        if replicas is None:
            require_strategy()
            return
        workers = processes.note(replicas.strategy)
        if workers is None:
            return
        state = self.context.state
        self._handled = sys.exc_info()[1]
        together = workers.together(f"an opening in mode '{state['mode']}'")
        together.begin(plan_of(self.context))
        self._together = together

    def bind(self) -> BoundPlan:
        """Bind the plan, with a tape around the ops of each step where gradients are taken."""
        plan, state = self.context.plan, self.context.state
        if not plan.takes_gradients:
            return BoundPlan(plan.kernel, state if self._is_plain else {**state, "tape": None})
        self.around = "tape", "gradient tape"
        return BoundPlan(plan.kernel, {**state}, _make_tape, "tape")

    def is_profiled(self) -> bool:
        """Return whether TensorFlow's profiler is on."""
        return profiler_is_on()

    def ranges(self) -> OpRanges:
        """Return the object that names the ops to TensorFlow's profiler."""
        return op_ranges(partial(titles, self.context.plan.ops))

    def slicers(self) -> list[Any]:
        """Return the active slicers, which cut the parts of all devices alike."""
        slicers = self.context.plan.slicers
        if self._replicas is None:
            return slicers
        return [ReplicaSlicer.around(slicer, self._replicas) for slicer in slicers]

    def merge_replicas(self, run: RunStep) -> RunStep:
        """Return a step whose results are put together from those of the devices."""
        return run if self._replicas is None else lambda batch: to_global(run(batch))

    def can_spread(self, batch: Mapping[str, Any]) -> bool:
        """Return whether there are devices to spread a batch over that is not spread yet."""
        if self._replicas is None:
            return False
        return not any(map(is_distributed, leaves_of(batch)))

    def step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch."""
        if self._is_plain:
            return super().step(meter)
        step, programs = self._step, self._programs
        if meter is None:
            return step
        log = meter.log
        row = meter.row("graph", self._row_name)
        traced = meter.trace_stamper(meter.row("rest", "the rest"))

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            programs.told = traced
            try:
                result = step(batch)
            finally:
                programs.told = None
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
        step = self._spread_step(step, replicas)
        return step if self._together is None else self._together.step(step)

    def _spread_step(self, step: RunStep, replicas: Replicas) -> RunStep:
        plan = self.context.plan
        keys = plan.kernel.resolution.device_inputs.names()

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            return (
                spread(step, batch, replicas, keys, plan.slicers) if self.spreads else step(batch)
            )

        return run

    def _eager_step(self, replicas: Replicas) -> RunStep:
        plan = self.context.plan
        kernel, state = plan.kernel, {**self.context.state, "tape": None}
        make_tape = _make_tape if plan.takes_gradients else None
        keys = kernel.resolution.device_inputs.names()
        # what slicers have cut is put together for each device by itself
        join = replicas.bundle if plan.slicers else join_values

        def run_part(part: dict[str, Any]) -> dict[str, Any]:
            return BoundPlan(kernel, {**state, "deferred": {}}, make_tape, "tape").run(part)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            missing = kernel.missing(batch)
            if missing is not None:
                raise missing
            results = replicas.run(run_part, {key: batch[key] for key in keys})
            return {**batch, **combine(results, join)}

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
