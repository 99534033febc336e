"""Read handwritten digits with a small convolutional network.

    python examples/programs/classifier.py
    python examples/programs/classifier.py --framework tf --epochs 3

One model, one loss, one update; a learning rate that follows a cosine from epoch to epoch, and
postprocessing that turns scores into a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Batch, Options, Record, batches, joined, main, read_digits

import fastnet
from fastnet.backend import set_lr, to_tensor
from fastnet.network import BaseNetwork
from fastnet.op.numpyop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import cosine_decay

EPOCHS = 8
BATCH_SIZE = 32
LEARNING_RATE = 3e-3


def torch_model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def tf_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, kernel_size=3, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, kernel_size=3, padding="same", activation="relu"),
            layers.MaxPool2D(2),
            layers.Flatten(),
            # without a seed of its own, what it drops depends on all else that is in the graph
            layers.Dropout(0.2, seed=0),
            layers.Dense(10),
        ]
    )


def make_network(model: Any) -> BaseNetwork:
    return fastnet.Network(
        ops=[
            ModelOp(model, inputs="image", outputs="scores"),
            CrossEntropy(inputs=("scores", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ],
        pops=LambdaOp(
            fn=lambda scores: scores.argmax(axis=-1), inputs="scores", outputs="guess", mode="eval"
        ),
    )


def accuracy(network: BaseNetwork, held: Batch) -> float:
    """Return the share of the held-out digits that are read right."""
    results = network.transform(list(batches(held, 150)), mode="eval")
    return float(np.mean(joined(results, "guess") == joined(results, "label")))


def train(options: Options) -> Record:
    record = Record()
    data, held = read_digits(options)
    model_fn = {"torch": torch_model, "tf": tf_model}[options.framework]
    model = fastnet.build(model_fn=model_fn, optimizer_fn="adam", model_name="reader")
    network = make_network(model)
    order = np.random.default_rng(options.seed)
    for epoch in range(1, options.epochs + 1):
        set_lr(model, cosine_decay(epoch, cycle_length=options.epochs + 1, init_lr=LEARNING_RATE))
        with network(mode="train", epoch=epoch, ds_id="") as net:
            for batch in batches(data, BATCH_SIZE, order, options.steps):
                record.note(net.run_step(to_tensor(batch, options.framework)), "loss")
    record.figures["accuracy"] = accuracy(network, held)
    record.keep_weights(reader=model)
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
