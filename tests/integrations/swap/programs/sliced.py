"""Batches that are cut, run in pieces, and put together again before postprocessing."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import numpy as np
from fastestimator.op.numpyop import LambdaOp
from fastestimator.op.tensorop.loss import MeanSquaredError
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer
from recording import Record, as_array, digits, logged, weights


def convolution(framework: str) -> Any:
    if framework == "torch":
        import torch

        return torch.nn.Conv2d(1, 1, 3, padding=1)
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((4, 4, 1)), layers.Conv2D(1, 3, padding="same")])


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 64, images=True, framework=framework),
        eval_data=digits(64, 96, images=True, framework=framework),
        batch_size=16,
        num_process=0,
    )
    model = fe.build(lambda: convolution(framework), optimizer_fn="sgd")
    window = [-1, -1, 4, 4] if framework == "torch" else [-1, 4, 4, -1]
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="smooth"),
            MeanSquaredError(inputs=("smooth", "x"), outputs="loss"),
            UpdateOp(model=model, loss_name="loss"),
        ],
        pops=[
            LambdaOp(fn=lambda x: x - x.mean(), inputs="smooth", outputs="smooth"),
        ],
        slicers=[
            SlidingSlicer(
                window_size=window,
                strides=[0, 0, 4, 4] if framework == "torch" else [0, 4, 4, 0],
                slice=["x"],
                unslice=["x", "smooth"],
            ),
            MeanUnslicer(unslice="loss"),
        ],
    )
    record = Record("loss", "smooth")
    summary = fe.Estimator(pipeline, network, epochs=2, log_steps=2, traces=record).fit("sliced")

    # a volume of five images, run one after the other
    stack = fe.Network(
        [ModelOp(model=model, inputs="volume", outputs="smooth")],
        slicers=AxisSlicer(axis=1, slice="volume", unslice="smooth"),
    )
    shape = (2, 5, 1, 4, 4) if framework == "torch" else (2, 5, 4, 4, 1)
    volume = np.linspace(0, 1, 160, dtype="float32").reshape(shape)
    result = stack.transform({"volume": volume}, mode="infer")
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "stacked": as_array(result["smooth"]),
    }
