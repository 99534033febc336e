"""Keras's own loop: `fit`, `evaluate` and `predict`, so that a call runs many batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from bench.program import Program
from bench.workloads.tf_models import TFForeignBatch, TFSupervised, TFTraces, TraceCensus, sgd
from bench.workloads.workload import Workload

# The cost of starting and ending a call is spread over this many steps, as over an epoch.
_STEPS_PER_CALL = 50


def make(workload: Workload) -> Program | None:
    """Return Keras's program. A call is an epoch, but it enters nothing."""
    match workload:
        case TFForeignBatch():
            return None
        case TFSupervised():
            return _supervised(workload)
        case TFTraces():
            return _traces(workload)
    return None


def compiled(model: Any, jit_compile: bool = False) -> Any:
    """Return a model that Keras trains. Its train steps return no predictions."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sgd(), loss=loss, jit_compile=jit_compile)
    return model


def _supervised(workload: TFSupervised) -> Program:
    model = workload.model()
    batch = workload.batch()
    # A dataset of one batch many times, ready in memory.
    one = tf.data.Dataset.from_tensors((batch["x"], batch["y"]))
    many = one.repeat(_STEPS_PER_CALL)

    def train(batches: Any) -> Any:
        return model.fit(batches, shuffle=False, verbose=0)

    def predict(batches: Any) -> Any:
        return model.predict(batches, verbose=0)

    if not workload.training:
        return Program(
            predict,
            many,
            steps_per_call=_STEPS_PER_CALL,
            once=lambda _: {**batch, "pred": predict(one)},
        )
    compiled(model)
    return Program(
        train,
        many,
        steps_per_call=_STEPS_PER_CALL,
        once=lambda _: {**batch, "loss": train(one).history["loss"][0]},
        model=model,
        lacks=frozenset({"pred"}),
    )


def _traces(workload: TFTraces) -> Program:
    census = TraceCensus()
    pairs = [(batch["x"], batch["y"]) for batch in workload.batches()]
    signature = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in pairs[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(pairs)))

    def count(_: None) -> int:
        model = compiled(workload.model(census))

        def run_epoch(mode: str, epoch: int) -> None:
            if mode == "train":
                model.fit(dataset, shuffle=False, verbose=0)
            else:
                model.evaluate(dataset, verbose=0)

        return workload.count(census, run_epoch)

    return Program(count)
