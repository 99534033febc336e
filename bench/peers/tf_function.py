"""`tf.function` as it is: the hand-written step, called through what looks at its arguments."""

from __future__ import annotations

from bench.peers import installed
from bench.program import Program
from bench.workloads.growth import TFGrowingChain
from bench.workloads.tf_supervised import TFCompiled, TFSupervised
from bench.workloads.tf_traces import TFTraces, TraceCensus
from bench.workloads.workload import Workload

NAME = "tf.function"


def available() -> bool:
    """Return whether TensorFlow is installed."""
    return installed("tensorflow")


def version() -> str | None:
    """It is TensorFlow's own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the function's program. A loop opens no epochs."""
    match workload:
        case TFSupervised():
            return _supervised(workload)
        case TFTraces():
            return _traces(workload)
        case TFGrowingChain():
            return _growing_chain(workload)
    return None


def _growing_chain(workload: TFGrowingChain) -> Program:
    import tensorflow as tf

    from bench.peers._tf_by_hand import increments, over_batch

    return Program(over_batch(tf.function(increments(workload))), workload.batch())


def _supervised(workload: TFSupervised) -> Program:
    import tensorflow as tf

    from bench.peers._tf_by_hand import over_batch, supervised_step

    model = workload.model()
    step = supervised_step(workload, model)
    function = tf.function(step, jit_compile=isinstance(workload, TFCompiled) or None)
    return Program(over_batch(function), workload.batch(), model=model)


def _traces(workload: TFTraces) -> Program:
    import tensorflow as tf

    from bench.peers._tf_by_hand import eval_step, train_step

    census = TraceCensus()
    model = workload.model(census)
    batches = workload.batches()

    def count(_: None) -> int:
        steps = {
            "train": tf.function(train_step(workload.step, model)),
            "eval": tf.function(eval_step(model)),
        }

        def run_epoch(mode: str, epoch: int) -> None:
            for batch in batches:
                steps[mode](batch)

        return workload.count(census, run_epoch)

    return Program(count)
