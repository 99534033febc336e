"""Networks of Keras models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.network.base import BaseNetwork, Step, _Opening
from fastnet.network.program import ModelStates, Program, TraceRecord
from fastnet.network.replicas import Replicas, ReplicaSlicer, fill_batch, to_global, trim_batch
from fastnet.types import State
from fastnet.util import get_batch_size

__all__ = ["TFNetwork"]

# the last ones tell why; a program that traces without end must not fill the memory with reasons
_MOST_RECORDS = 256


class TFNetwork(BaseNetwork):
    """A network whose ops run in TensorFlow.

    The ops are traced into a graph in the first step, and each later step calls the graph: Python
    in an op's `forward` (a print, a counter, a random number of numpy) runs while it is traced, and
    not in each step. Open the network with ``eager=True`` to run op by op instead. Values in a batch
    that are no tensors and no arrays (strings, ints, None) are constants of the graph, so that
    another value is another trace.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        postprocessing: Ops on numpy arrays, for whole batches, which run on the CPU after the rest.
        slicers: What cuts a batch into minibatches and joins their results.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer.
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

    def __init__(self, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
        self._records: deque[TraceRecord] = deque(maxlen=_MOST_RECORDS)
        self._programs: WeakValueDictionary[Any, Program] = WeakValueDictionary()
        super().__init__(
            target_type="tf",
            device=None,
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """When ops were traced and why, the last of many; each says how many there were with it."""
        return tuple(self._records)

    def _enter_models(self, opening: _Opening) -> None:
        # a tensor, so that another epoch is no other graph
        opening.state["epoch"] = tf.constant(opening.state["epoch"])
        if opening.state["mode"] == "train":
            for model in opening.layout.models:
                prepare_optimizer(getattr(model, "current_optimizer", None), model)

    def _make_step(self, opening: _Opening) -> Step:
        layout, state = opening.layout, opening.state
        replicas = Replicas() if tf.distribute.has_strategy() else None
        eager = self._eager_step(opening, replicas)
        if (state["eager"] and not opening.transforms) or tf.config.functions_run_eagerly():
            step = eager
        else:
            step = self._static_step(opening, replicas, eager)
        if replicas is None:
            return step

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            return to_global(step(batch))  # type: ignore[no-any-return]

        return run

    def _eager_step(self, opening: _Opening, replicas: Replicas | None) -> Step:
        plan, state = opening.layout.plan, opening.state
        takes_gradients = opening.layout.takes_gradients

        def run_ops(batch: Mapping[str, Any], state: State) -> dict[str, Any]:
            if not takes_gradients:
                return plan.predict(batch, {**state, "tape": None})
            with tf.GradientTape(persistent=True) as tape:
                return plan.predict(batch, {**state, "tape": tape})

        if replicas is None:

            def run(batch: Mapping[str, Any]) -> dict[str, Any]:
                return {**batch, **run_ops(batch, state)}

            return run

        def run_replicas(batch: Mapping[str, Any]) -> dict[str, Any]:
            read = {key: batch[key] for key in opening.layout.plan.keys if key in batch}
            results = replicas.run(lambda part: run_ops(part, {**state, "deferred": {}}), read)
            return {**batch, **results}

        return run_replicas

    def _static_step(self, opening: _Opening, replicas: Replicas | None, eager: Step) -> Step:
        layout, state = opening.layout, opening.state
        training = state["mode"] == "train" or layout.takes_gradients
        program = self._find_program(opening, replicas)
        traced = program.step_for(ModelStates(layout.models, training))
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
        key = (
            state["mode"],
            state["warmup"],
            tuple(map(id, layout.ops)),
            frozenset(layout.plan.resolution.returned.names()),
            None if replicas is None else id(replicas.strategy),
        )
        program = layout.programs.get(key) or self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(
                layout, {**state, "eager": False}, replicas, self._recorder()
            )
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

        return record

    def _fit_slicers(self, slicers: list[Any]) -> list[Any]:
        if not tf.distribute.has_strategy():
            return slicers
        replicas = Replicas()
        return [ReplicaSlicer(slicer, replicas) for slicer in slicers]

    def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not tf.distribute.has_strategy():
            return super()._do_transform(batch)
        replicas = Replicas()
        if any(isinstance(value, tf.distribute.DistributedValues) for value in batch.values()):
            return super()._do_transform(batch)
        size = get_batch_size(batch)
        if size < replicas.count:
            batch = fill_batch(batch, replicas.count - size)
        result = super()._do_transform(replicas.distribute(batch))
        return trim_batch(result, size) if size < replicas.count else result
