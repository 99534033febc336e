"""Images that are shifted, mirrored and blurred with noise at random, in training alone."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import tensorflow as tf
from fastestimator.op.tensorop import LambdaOp, TensorOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.schedule import EpochScheduler
from fastestimator.trace.metric import Accuracy
from recording import Record, digits, logged, memory, weights


class Shift(TensorOp):
    """Rolls images by a pixel or none, up or down."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        rows = tf.random.uniform((), -1, 2, tf.int32)
        return tf.roll(data, rows, 1)


class Noise(TensorOp):
    """Adds noise; every other time less of it."""

    def __init__(self, inputs: str, outputs: str, mode: str) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode)
        self.size = 0.1

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        noise = tf.random.normal(tf.shape(data), stddev=self.size, seed=3)
        return data + tf.where(tf.random.uniform(()) < 0.5, noise, noise / 2)


def network_of_images() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.SpatialDropout2D(0.3),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 96, True, framework),
        eval_data=digits(100, 132, True, framework),
        batch_size=32,
        num_process=0,
    )
    model = fe.build(network_of_images, "sgd")
    network = fe.Network(
        [
            Shift(inputs="x", outputs="x", mode="train"),
            EpochScheduler(
                {1: LambdaOp(tf.image.random_flip_left_right, "x", "x", "train"), 3: None}
            ),
            Noise(inputs="x", outputs="x", mode="!infer"),
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss", "x")
    estimator = fe.Estimator(
        pipeline, network, epochs=3, log_steps=2, traces=[Accuracy("y", "scores"), record]
    )
    summary = estimator.fit("augmented", warmup=False)
    batch = {"x": tf.ones((2, 8, 8, 1)), "y": tf.zeros((2,), tf.int64)}
    # op by op, which the network does of itself only where it draws again
    with network("eval", 4, "", eager=True) as opened:
        drawn = [opened.run_step(batch)["x"] for _ in range(3)]
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
        "drawn": [each.numpy() for each in drawn],
    }
