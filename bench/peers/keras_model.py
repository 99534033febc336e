"""Keras's own loop: `fit` and `predict`, or `train_on_batch` and `predict_on_batch`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from bench.program import Program
from bench.workloads.tf_models import TFForeignBatch, TFSupervised, sgd
from bench.workloads.workload import Workload

# The cost of starting and ending a call is spread over this many steps, as over an epoch.
_STEPS_PER_CALL = 50


def make(workload: Workload, on_batch: bool = False, at_once: bool = False) -> Program | None:
    """Return Keras's program for steps of models.

    Args:
        workload: The workload.
        on_batch: Whether a call trains on one batch, instead of a dataset.
        at_once: Whether all steps of a call are one execution (`steps_per_execution`).
    """
    if not isinstance(workload, TFSupervised) or isinstance(workload, TFForeignBatch):
        return None
    model = workload.model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=sgd(),
        loss=loss,
        jit_compile=workload.jit_compile,
        steps_per_execution=_STEPS_PER_CALL if at_once else 1,
    )
    return _on_batch(workload, model) if on_batch else _on_dataset(workload, model)


def _on_dataset(workload: TFSupervised, model: Any) -> Program:
    """Run over a dataset of one batch many times, ready in memory."""
    batch = workload.batch()
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
    return Program(
        train,
        many,
        steps_per_call=_STEPS_PER_CALL,
        once=lambda _: {**batch, "loss": train(one).history["loss"][0]},
        model=model,
        lacks=frozenset({"pred"}),
    )


def _on_batch(workload: TFSupervised, model: Any) -> Program:
    def train(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "loss": model.train_on_batch(batch["x"], batch["y"])}

    def infer(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "pred": model.predict_on_batch(batch["x"])}

    if workload.training:
        return Program(train, workload.batch(), model=model, lacks=frozenset({"pred"}))
    return Program(infer, workload.batch())
