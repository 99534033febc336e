"""Two models that are trained against each other, from noise that the network draws."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import tensorflow as tf
from fastestimator.dataset import NumpyDataset
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from recording import Record, digits, logged, memory, weights


def noise(real: Any) -> Any:
    return tf.random.normal((tf.shape(real)[0], 6))


def maker() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((6,)), layers.Dense(16), layers.LeakyReLU(0.2), layers.Dense(64, "sigmoid")]
    )


def judge() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((64,)), layers.Dense(16, "tanh"), layers.Dropout(0.3), layers.Dense(1)]
    )


def main(framework: str, folder: str) -> dict[str, Any]:
    samples = digits(0, 72)
    pipeline = fe.Pipeline(
        train_data=NumpyDataset({"real": samples["x"]}),
        eval_data=NumpyDataset({"real": samples["x"][:24]}),
        batch_size=16,
        num_process=0,
    )
    first, second = fe.build(
        lambda: [maker(), judge()], ["adam", "sgd"], model_name=["maker", "judge"]
    )
    network = fe.Network(
        [
            LambdaOp(noise, "real", "noise"),
            ModelOp(model=first, inputs="noise", outputs="fake"),
            ModelOp(model=second, inputs="fake", outputs="judged"),
            LambdaOp(tf.ones_like, "judged", "yes"),
            LambdaOp(tf.zeros_like, "judged", "no"),
            CrossEntropy(("judged", "yes"), "maker_loss", from_logits=True, form="binary"),
            UpdateOp(model=first, loss_name="maker_loss"),
            ModelOp(model=second, inputs="real", outputs="judged_real"),
            CrossEntropy(("judged_real", "yes"), "real_loss", from_logits=True, form="binary"),
            CrossEntropy(("judged", "no"), "fake_loss", from_logits=True, form="binary"),
            LambdaOp(lambda one, other: (one + other) / 2, ["real_loss", "fake_loss"], "loss"),
            UpdateOp(model=second, loss_name="loss", defer=True),
        ]
    )
    record = Record("maker_loss", "loss", "fake")
    summary = fe.Estimator(pipeline, network, epochs=3, log_steps=2, traces=record).fit(
        "gan", warmup=False
    )
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(first) + weights(second),
        "memory": memory(first) + memory(second),
    }
