"""Find balls in noisy volumes, with a model that knows images only.

    python examples/programs/volumes.py
    python examples/programs/volumes.py --framework tf --epochs 3

A slicer cuts each batch of volumes along the depth. The network runs once for each layer, its
update collects the gradients of all of them, and the scores come back joined to volumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Batch, Options, Record, batches, channels, joined, main

import fastnet
from fastnet.backend import to_tensor
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import Average
from fastnet.op.tensorop.loss import DiceLoss, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer, MeanUnslicer

EPOCHS = 6
BATCH_SIZE = 4
VOLUMES = 64  # to train on
HELD_OUT = 16
WIDTH = 16
DEPTH = 8


def make_volumes(options: Options, count: int, draw: np.random.Generator) -> Batch:
    """Make volumes with a ball in each, in noise as strong as the ball is bright."""
    grid = np.stack(np.meshgrid(*map(np.arange, (WIDTH, WIDTH, DEPTH)), indexing="ij"), axis=-1)
    centres = draw.uniform((5, 5, 2), (11, 11, 6), size=(count, 3))
    radii = draw.uniform(3, 5, size=count)
    offsets = grid - centres[:, None, None, None]
    masks = np.linalg.norm(offsets, axis=-1) < radii[:, None, None, None]
    volumes = masks + draw.normal(scale=1.0, size=masks.shape)
    return {
        "volume": channels(volumes.astype("float32"), options.framework),
        "mask": channels(masks.astype("float32"), options.framework),
    }


def torch_model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 1, kernel_size=3, padding=1),
        nn.Sigmoid(),
    )


def tf_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((WIDTH, WIDTH, 1)),
            layers.Conv2D(8, kernel_size=5, padding="same", activation="relu"),
            layers.Conv2D(8, kernel_size=5, padding="same", activation="relu"),
            layers.Conv2D(1, kernel_size=3, padding="same", activation="sigmoid"),
        ]
    )


def torch_optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.Adam(parameters, lr=5e-3)


def tf_optimizer() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.Adam(5e-3)


def make_network(model: Any, depth_axis: int) -> BaseNetwork:
    return fastnet.Network(
        ops=[
            ModelOp(model, inputs="volume", outputs="scores"),
            DiceLoss(inputs=("scores", "mask"), outputs="dice_loss"),
            MeanSquaredError(inputs=("scores", "mask"), outputs="squared_loss"),
            Average(inputs=["dice_loss", "squared_loss"], outputs="loss"),
            UpdateOp(model, loss_name="loss", merge_grad=DEPTH),
        ],
        slicers=[
            AxisSlicer(axis=depth_axis, slice=["volume", "mask"], unslice="scores"),
            MeanUnslicer(unslice=["dice_loss", "squared_loss", "loss"]),
        ],
    )


def overlap(found: np.ndarray, masks: np.ndarray) -> float:
    """Return the Dice score of whole volumes: 1 where what is found is what is there."""
    there = masks > 0.5
    return float(2 * np.sum(found & there) / (np.sum(found) + np.sum(there)))


def train(options: Options) -> Record:
    record = Record()
    draw = np.random.default_rng(options.seed)
    data, held = (make_volumes(options, count, draw) for count in (VOLUMES, HELD_OUT))
    model_fn, optimizer_fn, depth_axis = {
        "torch": (torch_model, torch_optimizer, 4),
        "tf": (tf_model, tf_optimizer, 3),
    }[options.framework]
    model = fastnet.build(model_fn=model_fn, optimizer_fn=optimizer_fn, model_name="finder")
    network = make_network(model, depth_axis)
    for epoch in range(1, options.epochs + 1):
        with network(mode="train", epoch=epoch, ds_id="") as net:
            for batch in batches(data, BATCH_SIZE, draw, options.steps):
                record.note(net.run_step(to_tensor(batch, options.framework)), "loss")

    results = network.transform(list(batches(held, BATCH_SIZE)), mode="eval")
    record.figures["overlap"] = overlap(joined(results, "scores") > 0.5, held["mask"])
    # how far one gets by choosing the best brightness, in hindsight, without looking around
    record.figures["overlap_of_threshold"] = max(
        overlap(held["volume"] > threshold, held["mask"]) for threshold in np.linspace(-1, 2, 31)
    )
    record.keep_weights(finder=model)
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
