"""Sessions of networks in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fastnet._execute import BoundPlan
from fastnet.backend.ranges import OpRanges
from fastnet.backend.tf._internals import profiler_is_on
from fastnet.backend.tf.setup import prepare_optimizers
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_set import OnProgram, key_of_ops
from fastnet.network.session import Session
from fastnet.network.step import REST_ROW, StepMeter, titles
from fastnet.network.tf.graph_session import GraphSession
from fastnet.network.tf.program_set import GraphProgramSet
from fastnet.network.tf.replicas import Replicas, compare_workers, join_distributed
from fastnet.types import RunStep, State

if TYPE_CHECKING:
    from fastnet.network.tf.network import TFNetwork


class TFSession(Session):
    """A session of a `TFNetwork`: adds the gradient tape, graphs, and the replicas of a strategy.

    A step runs as a graph, or eagerly with ``eager=True``. On several devices each replica runs it
    on its part of the batch.
    """

    _network: TFNetwork
    # Whether ops run one by one.
    _is_eager = False

    def __init__(self, network: TFNetwork, plan: ExecutionPlan, state: State) -> None:
        super().__init__(network, plan, state)
        self._replicas: Replicas | None = None
        # None if ops run one by one.
        self._graphs: GraphSession | None = None

    def _acquire(self) -> None:
        """Find the devices, compare the workers, and prepare what eager steps need."""
        plan, state = self.plan, self.state
        # A step that may not trace still runs as a graph if there is one.
        is_eager_asked = state["eager"] and self.may_trace
        self._is_eager = is_eager_asked or bool(tf.config.functions_run_eagerly())
        self._replicas = Replicas.of(plan.models)
        if self._replicas is not None:
            self._replicas.check(plan)
        if self.is_training and not state["warmup"]:
            compare_workers(plan, state, self._replicas)
        self._prepare_state()
        if self._is_eager and plan.uses_optimizers(state["mode"]):
            prepare_optimizers(plan.models)

    def _prepare_state(self) -> None:
        """Make the epoch a tensor, and set the tape to None where no step takes gradients."""
        # Leave the graph that the program may be tracing.
        with tf.init_scope():
            # A tensor, so that another epoch needs no other graph.
            self.state["epoch"] = tf.constant(self.state["epoch"], tf.int32)
        if self._runs_plan and not self.plan.takes_gradients:
            self.state["tape"] = None

    @property
    def _runs_plan(self) -> bool:
        """Whether the bound plan is the step: ops run eagerly on one device."""
        return self._is_eager and self._replicas is None

    def _bind(self) -> BoundPlan:
        """Bind the plan, with a tape around the ops of each step where gradients are taken.

        Unless ops run one by one, this also finds the programs of the ops.
        """
        plan, state = self.plan, self.state
        if not self._is_eager:
            self._graphs = self._make_graph_session()
        if plan.takes_gradients:
            self.context_row = "tape", "gradient tape"
            return BoundPlan(plan.kernel, state, _make_tape, "tape")
        return BoundPlan(plan.kernel, state if self._runs_plan else {**state, "tape": None})

    def _make_step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, as a graph or eagerly."""
        if self._runs_plan:
            return self._make_eager_step(meter)
        if meter is None:
            return self._make_unmeasured_step(None)

        log = meter.log
        row = meter.row("graph", self._row_name)
        step = self._make_unmeasured_step(meter.trace_stamper(meter.row(*REST_ROW)))

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            result = step(batch)
            log.stamp(row)
            return result

        return run

    @property
    def _row_name(self) -> str:
        if self._replicas is not None:
            return "graphs of the devices"
        return "graph" if self._network._compile_options is None else "compiled step"

    def _release(self) -> None:
        """Print a summary of what was compiled, once in a network; there is nothing to undo."""
        if self._graphs is not None and self._network._compile_options is not None:
            self._network._records.summarize()

    def _make_unmeasured_step(self, on_program: OnProgram | None) -> RunStep:
        """Return the function that runs a step as a graph or eagerly, on each replica."""
        replicas, plan = self._replicas, self.plan
        eager = self.bound.step if replicas is None else self._make_eager_step_on(replicas)
        step = eager if self._graphs is None else self._graphs.step(eager, on_program)
        if replicas is None:
            return step
        keys = plan.kernel.resolution.device_inputs.names()
        return replicas.split(step, keys, plan.slicers, self.is_training)

    def _make_eager_step_on(self, replicas: Replicas) -> RunStep:
        """Return the step that runs the ops one by one on each replica."""
        kernel, state = self.plan.kernel, {**self.state, "tape": None}
        make_tape = _make_tape if self.plan.takes_gradients else None
        keys = kernel.resolution.device_inputs.names()

        def run_part(part: dict[str, Any]) -> dict[str, Any]:
            return BoundPlan(kernel, {**state, "deferred": {}}, make_tape, "tape").run(part)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            missing = kernel.missing_key_error(batch)
            if missing is not None:
                raise missing
            return {**batch, **replicas.run(run_part, {key: batch[key] for key in keys})}

        return run

    def _make_graph_session(self) -> GraphSession:
        """Find the programs of the session's ops, which sessions of other plans may share."""
        network, plan, state, replicas = self._network, self.plan, self.state, self._replicas
        programs = network._program_sets.find(
            plan,
            (key_of_ops(plan, state), None if replicas is None else id(replicas.strategy)),
            lambda: GraphProgramSet(
                plan,
                state,
                replicas,
                network._compile_options,
                network._records,
                network._dynamic_axes,
                network._history,
            ),
        )
        return GraphSession(programs, plan.kernel, state, self.may_trace)

    def _with_joined_replicas(self, run: RunStep) -> RunStep:
        """Return a step around which the values of this process's replicas are joined.

        These are the batch if there are slicers, else the results.
        """
        if self._replicas is None:
            return run
        if self.plan.slicers:
            # Slicers slice the joined batch, and each minibatch is split over the replicas.
            return lambda batch: run(join_distributed(batch))
        return lambda batch: join_distributed(run(batch))

    def _ranges(self) -> OpRanges:
        """Return the object that names the ops to TensorFlow's profiler."""
        return OpRanges(titles(self.plan.ops), tf.profiler.experimental.Trace, profiler_is_on)


def _make_tape() -> tf.GradientTape:
    return tf.GradientTape(persistent=True)
