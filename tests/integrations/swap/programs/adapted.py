"""Frozen layers, each with two narrow ones beside it that train, and dropout before these."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import tensorflow as tf
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from recording import Record, digits, logged, memory, weights


class Adapted(tf.keras.layers.Layer):
    """A dense layer that stays, and a product of two thin matrices that learns."""

    def __init__(self, width: int, rank: int = 2) -> None:
        super().__init__()
        self.kept = tf.keras.layers.Dense(width, trainable=False)
        self.down = tf.keras.layers.Dense(rank, use_bias=False)
        self.up = tf.keras.layers.Dense(width, use_bias=False)
        self.drop = tf.keras.layers.Dropout(0.2)

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.kept(inputs) + self.up(self.down(self.drop(inputs, training=training)))


def network_with_adapters() -> Any:
    inputs = tf.keras.Input((64,))
    hidden = tf.nn.gelu(Adapted(24)(inputs))
    return tf.keras.Model(inputs, Adapted(10)(hidden))


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 80), eval_data=digits(80, 120), batch_size=16, num_process=0
    )
    model = fe.build(
        network_with_adapters, lambda: tf.keras.optimizers.legacy.Adam(1e-2), model_name="adapted"
    )
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss", merge_grad=2),
        ]
    )
    record = Record("loss")
    summary = fe.Estimator(pipeline, network, epochs=3, log_steps=2, traces=record).fit(
        "adapted", warmup=False
    )
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
    }
