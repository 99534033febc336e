"""Train a network against attacks on its images, and another without, and attack both.

    python examples/programs/adversarial.py
    python examples/programs/adversarial.py --framework tf --epochs 5

The fast gradient sign method moves each pixel a little to where the loss grows; the network learns
from the image and from the attacked one. In "eval" mode both networks are attacked, and the mean
size of the loss's gradient says how much a pixel can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Batch, Options, Record, batches, joined, main, read_digits

import fastnet
from fastnet.backend import to_tensor
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import Average
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

EPOCHS = 8
BATCH_SIZE = 32
STRENGTH = 0.15  # how far an attack moves a pixel, which is between 0 and 1


def torch_model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def tf_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, kernel_size=3, padding="same", activation="relu"),
            layers.Conv2D(32, kernel_size=3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def attack_ops(model: Any, mode: str | None) -> list[Any]:
    """Attack the images, and let the model read what comes of them."""
    return [
        FGSM(
            data="image",
            loss="clean_loss",
            outputs="attacked",
            epsilon=STRENGTH,
            clip_low=0.0,
            clip_high=1.0,
            mode=mode,
        ),
        ModelOp(model, inputs="attacked", outputs="attacked_scores", mode=mode),
        CrossEntropy(
            inputs=("attacked_scores", "label"),
            outputs="attacked_loss",
            from_logits=True,
            mode=mode,
        ),
    ]


def make_network(model: Any, defended: bool) -> BaseNetwork:
    read = [
        Watch(inputs="image"),
        ModelOp(model, inputs="image", outputs="scores"),
        CrossEntropy(inputs=("scores", "label"), outputs="clean_loss", from_logits=True, mode=None),
        GradientOp(finals="clean_loss", inputs="image", outputs="gradient", mode="eval"),
    ]
    if not defended:
        update = UpdateOp(model, loss_name="clean_loss")
        return fastnet.Network([*read, *attack_ops(model, "eval"), update])
    return fastnet.Network(
        [
            *read,
            *attack_ops(model, None),
            Average(inputs=["clean_loss", "attacked_loss"], outputs="loss"),
            UpdateOp(model, loss_name="loss"),
        ]
    )


def evaluate(network: BaseNetwork, held: Batch) -> dict[str, float]:
    results = network.transform(list(batches(held, 150)), mode="eval")
    labels = joined(results, "label")
    gradients = joined(results, "gradient")
    return {
        "clean": float(np.mean(joined(results, "scores").argmax(axis=-1) == labels)),
        "attacked": float(np.mean(joined(results, "attacked_scores").argmax(axis=-1) == labels)),
        "gradient": float(np.abs(gradients).mean()),
    }


def train(options: Options) -> Record:
    record = Record()
    data, held = read_digits(options)
    model_fn = {"torch": torch_model, "tf": tf_model}[options.framework]
    for name, loss in (("plain", "clean_loss"), ("defended", "loss")):
        model = fastnet.build(model_fn=model_fn, optimizer_fn="adam", model_name=name)
        network = make_network(model, defended=name == "defended")
        order = np.random.default_rng(options.seed)
        for epoch in range(1, options.epochs + 1):
            with network(mode="train", epoch=epoch, ds_id="") as net:
                for batch in batches(data, BATCH_SIZE, order, options.steps):
                    result = net.run_step(to_tensor(batch, options.framework))
                    record.note({name: result[loss]}, name)
        for figure, value in evaluate(network, held).items():
            record.figures[f"{name}_{figure}"] = value
        record.keep_weights(**{name: model})
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
