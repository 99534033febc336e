"""Draw digits that nobody wrote: a generator against a discriminator, both convolutional.

    python examples/programs/gan.py
    python examples/programs/gan.py --framework tf --epochs 5

The discriminator judges drawn and real images, and each model's loss needs the other's weights as
they were at the start of the step: the updates are deferred to its end. The losses are two ops
written here, for both frameworks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Batch, Options, Record, batches, joined, main, read_digits

import fastnet
from fastnet.backend import binary_crossentropy, ones_like, to_tensor, zeros_like
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

EPOCHS = 12
BATCH_SIZE = 32
NOISE = 16  # random numbers that an image is drawn from


class GeneratorLoss(TensorOp):
    """How badly drawn images pass for real ones."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return binary_crossentropy(data, ones_like(data), from_logits=True)


class DiscriminatorLoss(TensorOp):
    """How badly real images are told from drawn ones."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        real, drawn = data
        missed = binary_crossentropy(real, ones_like(real), from_logits=True)
        fooled = binary_crossentropy(drawn, zeros_like(drawn), from_logits=True)
        return (missed + fooled) / 2


def torch_models() -> list[Any]:
    from torch import nn

    generator = nn.Sequential(
        nn.Linear(NOISE, 32 * 4 * 4),
        nn.Unflatten(1, (32, 4, 4)),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, kernel_size=4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 1, kernel_size=3, padding=1),
        nn.Sigmoid(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 1),
    )
    return [generator, discriminator]


def torch_optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.Adam(parameters, lr=5e-4, betas=(0.5, 0.999))


def tf_models() -> list[Any]:
    import tensorflow as tf

    layers = tf.keras.layers

    def leaky_relu(values: Any) -> Any:
        # what LeakyReLU computes; about that one TensorFlow 2.21 complains as it optimizes graphs
        return tf.maximum(values, 0.2 * values)

    generator = tf.keras.Sequential(
        [
            layers.Input((NOISE,)),
            layers.Dense(4 * 4 * 32),
            layers.Reshape((4, 4, 32)),
            layers.ReLU(),
            layers.Conv2DTranspose(16, kernel_size=4, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, kernel_size=3, padding="same", activation="sigmoid"),
        ]
    )
    discriminator = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, kernel_size=3, strides=2, padding="same"),
            layers.Activation(leaky_relu),
            layers.Conv2D(64, kernel_size=3, strides=2, padding="same"),
            layers.Activation(leaky_relu),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    return [generator, discriminator]


def tf_optimizer() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.Adam(5e-4, beta_1=0.5)


def make_network(generator: Any, discriminator: Any) -> BaseNetwork:
    return fastnet.Network(
        ops=[
            ModelOp(generator, inputs="noise", outputs="drawn"),
            ModelOp(discriminator, inputs="drawn", outputs="drawn_score", mode="train"),
            GeneratorLoss(inputs="drawn_score", outputs="generator_loss", mode="train"),
            UpdateOp(generator, loss_name="generator_loss", defer=True),
            ModelOp(discriminator, inputs="image", outputs="real_score", mode="train"),
            DiscriminatorLoss(
                inputs=["real_score", "drawn_score"], outputs="discriminator_loss", mode="train"
            ),
            UpdateOp(discriminator, loss_name="discriminator_loss", defer=True),
        ]
    )


def draw(network: BaseNetwork, noise: np.ndarray) -> np.ndarray:
    """Let the generator draw, without the rest."""
    given: list[Batch] = list(batches({"noise": noise}, 150))
    return joined(network.transform(given, mode="infer"), "drawn")


def distances(drawn: np.ndarray, real: np.ndarray) -> tuple[float, float]:
    """Return how far the mean and the variance of each pixel are from those of real images."""
    means = drawn.mean(axis=0) - real.mean(axis=0)
    variances = drawn.var(axis=0) - real.var(axis=0)
    return float(np.abs(means).mean()), float(np.abs(variances).mean())


def train(options: Options) -> Record:
    record = Record()
    data, held = read_digits(options)
    model_fn, optimizer_fn = {
        "torch": (torch_models, torch_optimizer),
        "tf": (tf_models, tf_optimizer),
    }[options.framework]
    generator, discriminator = fastnet.build(
        model_fn=model_fn,
        optimizer_fn=[optimizer_fn, optimizer_fn],
        model_name=["generator", "discriminator"],
    )
    network = make_network(generator, discriminator)
    order = np.random.default_rng(options.seed)
    noise = order.standard_normal((len(held["image"]), NOISE), dtype="float32")
    before = distances(draw(network, noise), held["image"])
    for epoch in range(1, options.epochs + 1):
        with network(mode="train", epoch=epoch, ds_id="") as net:
            for batch in batches(data, BATCH_SIZE, order, options.steps):
                size = len(batch["image"])
                batch["noise"] = order.standard_normal((size, NOISE), dtype="float32")
                result = net.run_step(to_tensor(batch, options.framework))
                record.note(result, "generator_loss", "discriminator_loss")
    after = distances(draw(network, noise), held["image"])
    for name, (mean, variance) in (("before", before), ("after", after)):
        record.figures[f"distance_of_means_{name}"] = mean
        record.figures[f"distance_of_variances_{name}"] = variance
    record.keep_weights(generator=generator, discriminator=discriminator)
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
