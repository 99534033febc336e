"""Begin with thumbnails and a small network, and let it grow until it reads whole images.

    python examples/programs/growing.py
    python examples/programs/growing.py --framework tf --epochs 6

In the first third of the epochs a coarse entry reads thumbnails. Then a fine entry, which reads the
images, is faded in epoch by epoch; in the last third it has replaced the coarse one. What follows
the entries is trained all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Batch, Options, Record, batches, channels, joined, main, read_digits, weights_of

import fastnet
from fastnet.backend import to_tensor
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler

EPOCHS = 9
BATCH_SIZE = 32


class Fade(TensorOp):
    """Mix what two entries see.

    Args:
        share: How much of the second one there is, between 0 and 1.
        inputs: The keys of both.
        outputs: The key of the mixture.
    """

    def __init__(self, share: float, inputs: Sequence[str], outputs: str) -> None:
        super().__init__(inputs=inputs, outputs=outputs)
        self.share = share

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        old, new = data
        return (1 - self.share) * old + self.share * new


def torch_models() -> list[Any]:
    from torch import nn

    coarse = nn.Sequential(nn.Conv2d(1, 16, kernel_size=1), nn.ReLU())
    fine = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
    )
    rest = nn.Sequential(
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    return [coarse, fine, rest]


def tf_models() -> list[Any]:
    import tensorflow as tf

    layers = tf.keras.layers
    coarse = tf.keras.Sequential(
        [layers.Input((4, 4, 1)), layers.Conv2D(16, kernel_size=1, activation="relu")]
    )
    fine = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, kernel_size=3, padding="same", activation="relu"),
            layers.Conv2D(16, kernel_size=3, strides=2, padding="same", activation="relu"),
        ]
    )
    rest = tf.keras.Sequential(
        [
            layers.Input((4, 4, 16)),
            layers.Conv2D(32, kernel_size=3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    return [coarse, fine, rest]


def stages(epochs: int) -> tuple[int, int]:
    """Return the epochs in which the network begins to grow, and in which it has grown."""
    return 1 + epochs // 3, 1 + 2 * epochs // 3


def make_network(coarse: Any, fine: Any, rest: Any, epochs: int) -> BaseNetwork:
    grows, grown = stages(epochs)
    fades: dict[int, Any] = {
        epoch: Fade(
            (epoch - grows + 1) / (grown - grows + 1), inputs=["old", "new"], outputs="seen"
        )
        for epoch in range(grows, grown)
    }
    return fastnet.Network(
        ops=[
            EpochScheduler(
                {
                    1: ModelOp(coarse, inputs="thumbnail", outputs="seen"),
                    grows: ModelOp(coarse, inputs="thumbnail", outputs="old"),
                    grown: None,
                }
            ),
            EpochScheduler(
                {
                    grows: ModelOp(fine, inputs="image", outputs="new"),
                    grown: ModelOp(fine, inputs="image", outputs="seen"),
                }
            ),
            EpochScheduler({**fades, grown: None}),
            ModelOp(rest, inputs="seen", outputs="scores"),
            CrossEntropy(inputs=("scores", "label"), outputs="loss", from_logits=True),
            EpochScheduler({1: UpdateOp(coarse, loss_name="loss"), grown: None}),
            EpochScheduler({grows: UpdateOp(fine, loss_name="loss")}),
            UpdateOp(rest, loss_name="loss"),
        ]
    )


def with_thumbnails(data: Batch, framework: str) -> Batch:
    """Add images of half the width, each pixel the mean of four."""
    pixels = data["image"].reshape(-1, 4, 2, 4, 2)
    return {**data, "thumbnail": channels(pixels.mean(axis=(2, 4)), framework)}


def accuracy(network: BaseNetwork, held: Batch, epoch: int) -> float:
    """Return the share of the held-out digits that are read right in an epoch."""
    results = network.transform(list(batches(held, 150)), mode="eval", epoch=epoch)
    return float(np.mean(joined(results, "scores").argmax(axis=-1) == joined(results, "label")))


def train(options: Options) -> Record:
    record = Record()
    data, held = (with_thumbnails(each, options.framework) for each in read_digits(options))
    model_fn = {"torch": torch_models, "tf": tf_models}[options.framework]
    coarse, fine, rest = fastnet.build(
        model_fn=model_fn, optimizer_fn=["adam"] * 3, model_name=["coarse", "fine", "rest"]
    )
    network = make_network(coarse, fine, rest, options.epochs)
    order = np.random.default_rng(options.seed)
    for epoch in range(1, options.epochs + 1):
        before = {"coarse": weights_of(coarse), "fine": weights_of(fine)}
        with network(mode="train", epoch=epoch, ds_id="") as net:
            for batch in batches(data, BATCH_SIZE, order, options.steps):
                record.note(net.run_step(to_tensor(batch, options.framework)), "loss")
        record.figures[f"accuracy_{epoch}"] = accuracy(network, held, epoch)
        for name, model in (("coarse", coarse), ("fine", fine)):
            moves = zip(before[name], weights_of(model), strict=True)
            record.figures[f"{name}_moved_{epoch}"] = max(
                float(np.abs(now - then).max()) for then, now in moves
            )
    record.keep_weights(coarse=coarse, fine=fine, rest=rest)
    return record


def run(arguments: Sequence[str] | None = None) -> None:
    main(__doc__, train, EPOCHS, arguments)


if __name__ == "__main__":
    run()
