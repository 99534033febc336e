"""What explains a model: saliency by a network of its own, GradCAM, and TensorBoard's files."""

from __future__ import annotations

import os
from typing import Any

import fastestimator as fe
import numpy as np
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.gradient import GradientOp, Watch
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.io import TensorBoard
from fastestimator.trace.xai import GradCAM, Saliency
from fastestimator.xai import SaliencyNet
from recording import Record, as_array, digits, logged, weights


def convolutions(framework: str) -> Any:
    if framework == "torch":
        import torch

        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(256, 10),
        )
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, padding="same", activation="relu", name="first"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def largest(scores: Any) -> Any:
    """Take the highest score of each sample."""
    return scores.max(dim=1).values if hasattr(scores, "detach") else scores[:, 0]


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 64, images=True, framework=framework),
        eval_data=digits(64, 96, images=True, framework=framework),
        batch_size=32,
        num_process=0,
    )
    model = fe.build(lambda: convolutions(framework), optimizer_fn="adam")
    layer = "0" if framework == "torch" else "first"
    network = fe.Network(
        [
            Watch(inputs="x", mode="eval"),
            ModelOp(model, inputs="x", outputs=["scores", "layer"], intermediate_layers=layer),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            LambdaOp(fn=largest, inputs="scores", outputs="best", mode="eval"),
            GradientOp(inputs="x", finals="best", outputs="gradient", mode="eval"),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss", "layer")
    gradients = Record("gradient", mode="eval")
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=2,
        log_steps=1,
        traces=[
            record,
            gradients,
            GradCAM(images="x", grads="gradient", n_samples=2),
            Saliency(model, "x", "scores", samples=2, smoothing=0, integrating=0),
            TensorBoard(log_dir=folder, update_freq="epoch", weight_histogram_freq="epoch"),
        ],
    )
    summary = estimator.fit("explained")
    dataset = digits(64, 68, images=True, framework=framework)
    images = np.stack([dataset[place]["x"] for place in range(4)])
    masks = SaliencyNet(model, "x", "scores").get_masks({"x": images})
    return {
        "steps": record.steps,
        "gradients": gradients.steps,
        "logged": {key: value for key, value in logged(summary).items() if "loss" in key},
        "seen": sorted({key.split()[1] for key in logged(summary)}),
        "masks": as_array(masks["saliency"]),
        "weights": weights(model),
        "written": sorted({place for _, places, _ in os.walk(folder) for place in places})[1:],
    }
