"""Keras's own loop: `fit`, `evaluate` and `predict`, so that a call of it runs many batches."""

from __future__ import annotations

from typing import Any

from bench.peers import installed, version_of
from bench.program import Program
from bench.workloads.tf_supervised import TFSupervised
from bench.workloads.tf_traces import TFTraces, TraceCensus
from bench.workloads.workload import Workload

NAME = "Keras fit"

# What starting and ending a call costs is spread over this many steps, as over an epoch.
_STEPS_PER_CALL = 50


def available() -> bool:
    """Return whether Keras can run in TensorFlow here."""
    return installed("keras") and installed("tensorflow")


def version() -> str | None:
    """Return Keras's version."""
    return version_of("keras")


def make(workload: Workload) -> Program | None:
    """Return Keras's program. A call is an epoch, but nothing is opened for it."""
    match workload:
        case TFSupervised(training=True):
            return _train(workload)
        case TFSupervised():
            return _infer(workload)
        case TFTraces():
            return _traces(workload)
    return None


def _dataset(batch: dict[str, Any], count: int) -> Any:
    """Return a dataset of the same batch many times, ready in memory."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((batch["x"], batch["y"])).repeat(count)


def _train(workload: TFSupervised) -> Program:
    from bench.peers._keras_compiled import compiled

    model = compiled(workload, workload.model())
    batch = workload.batch()
    one = _dataset(batch, 1)

    def once(_: Any) -> dict[str, Any]:
        history = model.fit(one, shuffle=False, verbose=0).history
        return {**batch, "loss": history["loss"][0]}

    return Program(
        lambda batches: model.fit(batches, shuffle=False, verbose=0),
        _dataset(batch, _STEPS_PER_CALL),
        steps_per_call=_STEPS_PER_CALL,
        once=once,
        model=model,
        lacks=frozenset({"pred"}),
    )


def _infer(workload: TFSupervised) -> Program:
    model = workload.model()
    batch = workload.batch()
    one = _dataset(batch, 1)
    return Program(
        lambda batches: model.predict(batches, verbose=0),
        _dataset(batch, _STEPS_PER_CALL),
        steps_per_call=_STEPS_PER_CALL,
        once=lambda _: {**batch, "pred": model.predict(one, verbose=0)},
        model=model,
    )


def _traces(workload: TFTraces) -> Program:
    import tensorflow as tf

    from bench.peers._keras_compiled import compiled

    census = TraceCensus()
    pairs = [(batch["x"], batch["y"]) for batch in workload.batches()]
    signature = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in pairs[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(pairs)))

    def count(_: None) -> int:
        model = compiled(workload.step, workload.model(census))

        def run_epoch(mode: str, epoch: int) -> None:
            if mode == "train":
                model.fit(dataset, shuffle=False, verbose=0)
            else:
                model.evaluate(dataset, verbose=0)

        return workload.count(census, run_epoch)

    return Program(count)
