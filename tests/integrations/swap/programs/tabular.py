"""A classifier of a table's rows with dropout, whose last batch is smaller than the others."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import tensorflow as tf
from fastestimator.dataset import NumpyDataset
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.adapt import ReduceLROnPlateau
from fastestimator.trace.metric import Accuracy
from recording import Record, logged, memory, weights
from sklearn.datasets import load_wine


def rows(first: int, step: int) -> NumpyDataset:
    """Take some of scikit-learn's wines, each measure around zero."""
    data = load_wine()
    x = ((data.data - data.data.mean(0)) / data.data.std(0)).astype("float32")
    y = data.target.astype("int64")
    return NumpyDataset({"x": x[first::step], "y": y[first::step]})


def classifier() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((13,)),
            layers.GaussianNoise(0.1),
            layers.Dense(24, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.4),
            layers.Dense(16, "selu"),
            layers.AlphaDropout(0.2),
            layers.Dense(3),
        ]
    )


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=rows(0, 2),
        eval_data=rows(1, 4),
        test_data=rows(3, 4),
        batch_size=16,
        num_process=0,
    )
    model = fe.build(classifier, "adam")
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss")
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=3,
        log_steps=2,
        traces=[Accuracy("y", "scores"), ReduceLROnPlateau(model, "loss", patience=1), record],
    )
    summary = estimator.fit("tabular")
    estimator.test()
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
    }
