"""The programs of a hand-written concrete function, for batches of one size or of any."""

from __future__ import annotations

from typing import Any

from bench.peers._tf_by_hand import (
    Step,
    concrete_function,
    eval_step,
    increments,
    over_batch,
    supervised_step,
    train_step,
)
from bench.program import Program
from bench.workloads.foreign import TFForeignBatch
from bench.workloads.growth import TFGrowingChain
from bench.workloads.tf_first_step import TFFirstStep
from bench.workloads.tf_op_cost import TFOpGraph
from bench.workloads.tf_open_epoch import TFOpenEpoch
from bench.workloads.tf_supervised import TFSupervised
from bench.workloads.tf_traces import TFTraces, TraceCensus
from bench.workloads.workload import Workload


def make(workload: Workload, any_size: bool) -> Program | None:
    """Return the program of `workload`.

    Args:
        workload: What to do.
        any_size: Whether the batch's axis is left open in what is traced.
    """
    match workload:
        case TFForeignBatch():
            return _foreign(workload)
        case TFSupervised():
            return _supervised(workload, any_size)
        case TFFirstStep() if not any_size:
            return _first_step(workload)
        case TFOpenEpoch() if not any_size:
            return _open_epoch(workload)
        case TFTraces():
            return _traces(workload, any_size)
        case TFOpGraph() if any_size:
            from bench.peers import _tf_op_program

            return _tf_op_program.concrete(workload)
        case TFGrowingChain() if not any_size:
            function = concrete_function(increments(workload), workload.batch(), 8)
            return Program(over_batch(function), workload.batch())
    return None


def _supervised(workload: TFSupervised, any_size: bool) -> Program:
    """Call the concrete function with the batch's own dict, and lay its results over that."""
    model = workload.model()
    batch = workload.batch()
    size = None if any_size else workload.shape[0]
    function = concrete_function(supervised_step(workload, model), batch, size)
    return Program(over_batch(function), batch, model=model)


def _foreign(workload: TFForeignBatch) -> Program:
    """Copy each foreign tensor into one of TensorFlow's, and call the concrete function."""
    import tensorflow as tf

    model = workload.model()
    own = TFSupervised.batch(workload)
    function = concrete_function(supervised_step(workload, model), own, workload.shape[0])
    step = over_batch(function)

    def convert_and_step(batch: dict[str, Any]) -> Any:
        return step({key: tf.convert_to_tensor(value.numpy()) for key, value in batch.items()})

    return Program(convert_and_step, workload.batch(), model=model)


def _first_step(workload: TFFirstStep) -> Program:
    """Trace the step for the batch's size, and call what comes of it."""
    step = workload.step
    batch = step.batch()

    def trace_and_step(by_hand: Step) -> Any:
        return over_batch(concrete_function(by_hand, batch, step.shape[0]))(batch)

    return Program(trace_and_step, fresh=lambda: supervised_step(step, step.model()))


def _open_epoch(workload: TFOpenEpoch) -> Program:
    """Run a step: a loop opens nothing, and what this adds to a step is what the clock errs by."""
    program, plain = (_supervised(workload.step, any_size=False) for _ in range(2))
    return Program(program.step, program.argument, model=program.model, plain=plain)


def _traces(workload: TFTraces, any_size: bool) -> Program:
    """Trace ahead for each size that comes, or once for any."""
    census = TraceCensus()
    model = workload.model(census)
    steps = {"train": train_step(workload.step, model), "eval": eval_step(model)}
    batches = workload.batches()

    def count(_: None) -> int:
        traced: dict[tuple[str, int | None], Step] = {}

        def run_epoch(mode: str, epoch: int) -> None:
            for batch in batches:
                size = None if any_size else len(batch["x"])
                if (mode, size) not in traced:
                    traced[mode, size] = concrete_function(steps[mode], batch, size)
                traced[mode, size](batch)

        return workload.count(census, run_epoch)

    return Program(count)
