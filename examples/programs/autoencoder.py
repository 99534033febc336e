"""Squeeze handwritten digits into a few numbers, and draw them again from these.

    python examples/programs/autoencoder.py
    python examples/programs/autoencoder.py --framework tf --epochs 5

Two models that one loss trains, each with an optimizer of its own. The error to beat is that of an
autoencoder that knows one image only: the mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Options, Record, batches, joined, main, read_digits

import fastnet
from fastnet.backend import to_tensor
from fastnet.network import BaseNetwork
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp

EPOCHS = 12
BATCH_SIZE = 32
PIXELS = 8 * 8
CODE = 10  # numbers that an image is squeezed into


def torch_models() -> list[Any]:
    from torch import nn

    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 48), nn.ReLU(), nn.Linear(48, CODE), nn.Tanh()
    )
    decoder = nn.Sequential(
        nn.Linear(CODE, 48),
        nn.ReLU(),
        nn.Linear(48, PIXELS),
        nn.Sigmoid(),
        nn.Unflatten(1, (1, 8, 8)),
    )
    return [encoder, decoder]


def torch_optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.RMSprop(parameters, lr=2e-3)


def tf_models() -> list[Any]:
    import tensorflow as tf

    layers = tf.keras.layers
    encoder = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(48, activation="relu"),
            layers.Dense(CODE, activation="tanh"),
        ]
    )
    decoder = tf.keras.Sequential(
        [
            layers.Input((CODE,)),
            layers.Dense(48, activation="relu"),
            layers.Dense(PIXELS, activation="sigmoid"),
            layers.Reshape((8, 8, 1)),
        ]
    )
    return [encoder, decoder]


def tf_optimizer() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.RMSprop(2e-3)


def make_network(encoder: Any, decoder: Any) -> BaseNetwork:
    return fastnet.Network(
        ops=[
            ModelOp(encoder, inputs="image", outputs="code"),
            ModelOp(decoder, inputs="code", outputs="drawn"),
            MeanSquaredError(inputs=("drawn", "image"), outputs="loss"),
            UpdateOp(encoder, loss_name="loss"),
            UpdateOp(decoder, loss_name="loss"),
        ]
    )


def train(options: Options) -> Record:
    record = Record()
    data, held = read_digits(options)
    model_fn, optimizer_fn = {
        "torch": (torch_models, torch_optimizer),
        "tf": (tf_models, tf_optimizer),
    }[options.framework]
    encoder, decoder = fastnet.build(
        model_fn=model_fn,
        optimizer_fn=["adam", optimizer_fn],
        model_name=["encoder", "decoder"],
    )
    network = make_network(encoder, decoder)
    order = np.random.default_rng(options.seed)
    for epoch in range(1, options.epochs + 1):
        with network(mode="train", epoch=epoch, ds_id="") as net:
            for batch in batches(data, BATCH_SIZE, order, options.steps):
                record.note(net.run_step(to_tensor(batch, options.framework)), "loss")

    results = network.transform(list(batches(held, 150)), mode="eval")
    drawn, images = joined(results, "drawn"), joined(results, "image")
    record.figures["error"] = float(np.mean((drawn - images) ** 2))
    mean_image = data["image"].mean(axis=0)
    record.figures["error_of_mean_image"] = float(np.mean((mean_image - images) ** 2))
    record.figures["code_length"] = joined(results, "code").shape[1]
    record.keep_weights(encoder=encoder, decoder=decoder)
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
