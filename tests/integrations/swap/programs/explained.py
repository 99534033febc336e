"""Heat maps and saliency of a classifier, and what TensorBoard is given to draw."""

from __future__ import annotations

import glob
import os
from typing import Any

import fastestimator as fe
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.gradient import GradientOp, Watch
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.io import TensorBoard
from fastestimator.trace.trace import Trace
from fastestimator.trace.xai import GradCAM, Saliency
from recording import as_array, digits, weights
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def network_of_images(framework: str) -> Any:
    """Make a model whose first layer is a convolution."""
    if framework == "torch":
        import torch

        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 10)
        )
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, name="conv"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class Shown(Trace):
    """Keeps the pictures that other traces have drawn."""

    def __init__(self, *keys: str) -> None:
        super().__init__(inputs=keys, mode="eval")
        self.found: dict[str, list[Any]] = {}

    def on_epoch_end(self, data: Any) -> None:
        for key in self.inputs:
            shown = [one for column in data[key].columns for one in column.batch]
            self.found[key] = [as_array(one.image) for one in shown if one.image is not None]


def main(framework: str, folder: str) -> dict[str, Any]:
    images = {"images": True, "framework": framework}
    pipeline = fe.Pipeline(
        train_data=digits(0, 64, **images),
        eval_data=digits(64, 72, **images),
        batch_size=8,
        num_process=0,
    )
    model = fe.build(lambda: network_of_images(framework), optimizer_fn="adam", model_name="seen")
    # FastEstimator has no gradients by intermediate outputs in torch outside of training.
    seen = "x" if framework == "torch" else "features"
    layer: Any = 0 if framework == "torch" else "conv"
    network = fe.Network(
        [
            Watch("x", mode="eval"),
            ModelOp(model, "x", ["scores", "features"], intermediate_layers=layer),
            LambdaOp(fn=lambda scores: scores[:, 3], inputs="scores", outputs="three", mode="eval"),
            GradientOp("three", inputs=seen, outputs="grads", mode="eval"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
    )
    shown = Shown("cam", "saliency")
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=1,
        log_steps=None,
        traces=[
            GradCAM("x", "grads", labels="y", preds="scores", outputs="cam", mode="eval"),
            Saliency(
                model, "x", "scores", "y", samples=4, mode=["eval"], smoothing=2, integrating=(4, 2)
            ),
            shown,
            TensorBoard(folder, update_freq=1, weight_histogram_freq="epoch", write_graph=False),
        ],
    )
    estimator.fit()
    scalars = {}
    for path in sorted(glob.glob(os.path.join(folder, "**", "events*"), recursive=True)):
        events = EventAccumulator(path).Reload()
        tags = events.Tags()
        for tag in tags["scalars"]:
            if "sec" not in tag:
                scalars[tag] = [float(one.value) for one in events.Scalars(tag)]
        for tag in tags["tensors"]:
            scalars[tag] = len(events.Tensors(tag))
        scalars[os.path.basename(os.path.dirname(path))] = sorted(tags["histograms"])
    assert shown.found["cam"]
    return {"shown": shown.found, "weights": weights(model), "logged": scalars}
