"""Sequences, in recurrent layers that drop inputs and states."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import tensorflow as tf
from fastestimator.op.tensorop import Reshape
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.metric import Accuracy
from recording import Record, digits, logged, memory, weights


def reader() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((4, 16)),
            layers.GRU(8, dropout=0.2, recurrent_dropout=0.2, unroll=True),
            layers.Dense(10),
        ]
    )


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 40), eval_data=digits(40, 56), batch_size=16, num_process=0
    )
    model = fe.build(reader, "rmsprop")
    network = fe.Network(
        [
            Reshape(inputs="x", outputs="rows", shape=(-1, 4, 16)),
            ModelOp(model=model, inputs="rows", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss")
    summary = fe.Estimator(
        pipeline, network, epochs=3, log_steps=2, traces=[Accuracy("y", "scores"), record]
    ).fit("recurrent", warmup=False)
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
    }
