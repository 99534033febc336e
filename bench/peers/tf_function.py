"""`tf.function`: the hand-written step, called through the look-up of its signature."""

from __future__ import annotations

import tensorflow as tf

from bench.peers.tf_steps import (
    eval_step,
    increments,
    over_batch,
    supervised_step,
    train_step,
)
from bench.program import Program
from bench.workloads.chains import TFGrowingChain
from bench.workloads.tf_models import TFSupervised, TFTraces, TraceCensus
from bench.workloads.workload import Workload


def make(workload: Workload, jit_compile: bool = False) -> Program | None:
    """Return the function's program, compiled by XLA on request."""
    match workload:
        case TFSupervised():
            model = workload.model()
            step = supervised_step(workload, model)
            function = tf.function(step, jit_compile=jit_compile or None)
            return Program(over_batch(function), workload.batch(), model=model)
        case TFTraces() if not jit_compile:
            return _traces(workload)
        case TFGrowingChain() if not jit_compile:
            return Program(over_batch(tf.function(increments(workload))), workload.batch())
    return None


def _traces(workload: TFTraces) -> Program:
    census = TraceCensus()
    model = workload.model(census)
    batches = workload.batches()

    def count(_: None) -> int:
        steps = {"train": tf.function(train_step(model)), "eval": tf.function(eval_step(model))}

        def run_epoch(mode: str, epoch: int) -> None:
            for batch in batches:
                steps[mode](batch)

        return workload.count(census, run_epoch)

    return Program(count)
