"""The baseline in TensorFlow: a hand-written step, traced once, called as a concrete function.

No signature is looked up, and nothing can trace again. With `any_size` the batch axis is open.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_steps import (
    Step,
    concrete_function,
    eval_step,
    increments,
    over_batch,
    supervised_step,
    train_step,
)
from bench.program import Program
from bench.workloads.chains import TFGrowingChain
from bench.workloads.tf_models import (
    TFFirstStep,
    TFForeignBatch,
    TFOpenEpoch,
    TFSupervised,
    TFTraces,
    TraceCensus,
)
from bench.workloads.workload import Workload


def make(workload: Workload, any_size: bool = False) -> Program | None:
    """Return the concrete function of `workload`.

    Args:
        workload: The workload.
        any_size: Whether the batch axis is open.
    """
    match workload:
        case TFSupervised():
            return _supervised(workload, any_size)
        case TFTraces():
            return _traces(workload, any_size)
        case TFFirstStep() if not any_size:
            return _first_step(workload)
        case TFOpenEpoch() if not any_size:
            # A hand-written loop enters nothing: the difference is the error of the measurement.
            program, plain = (_supervised(workload.step, False) for _ in range(2))
            return Program(program.step, program.argument, model=program.model, plain=plain)
        case TFGrowingChain() if not any_size:
            function = concrete_function(increments(workload), workload.batch())
            return Program(over_batch(function), workload.batch())
    return None


def _supervised(workload: TFSupervised, any_size: bool) -> Program:
    """Call the concrete function with the batch's own dict; convert torch tensors first."""
    model = workload.model()
    batch = TFSupervised.batch(workload)
    step = over_batch(concrete_function(supervised_step(workload, model), batch, any_size))

    def convert_and_step(batch: dict[str, Any]) -> Any:
        return step({key: tf.convert_to_tensor(value.numpy()) for key, value in batch.items()})

    foreign = isinstance(workload, TFForeignBatch)
    return Program(convert_and_step if foreign else step, workload.batch(), model=model)


def _first_step(workload: TFFirstStep) -> Program:
    """Trace the step and call the concrete function once."""
    step = workload.step
    batch = step.batch()

    def trace_and_step(by_hand: Step) -> Any:
        return over_batch(concrete_function(by_hand, batch))(batch)

    return Program(trace_and_step, fresh=lambda: supervised_step(step, step.model()))


def _traces(workload: TFTraces, any_size: bool) -> Program:
    """Trace each size ahead, or once for any size."""
    census = TraceCensus()
    model = workload.model(census)
    steps = {"train": train_step(model), "eval": eval_step(model)}
    batches = workload.batches()

    def count(_: None) -> int:
        traced: dict[tuple[str, int | None], Step] = {}

        def run_epoch(mode: str, epoch: int) -> None:
            for batch in batches:
                size = None if any_size else len(batch["x"])
                if (mode, size) not in traced:
                    traced[mode, size] = concrete_function(steps[mode], batch, any_size)
                traced[mode, size](batch)

        return workload.count(census, run_epoch)

    return Program(count)
