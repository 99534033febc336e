"""A TensorFlow step that is traced anew each epoch, and the same step that is not.

The walk through it is docs/overhead.md. The loss counts little at first and more from epoch to
epoch, so the step is told the epoch, in the batch.

    fastnet profile examples/overhead_tf.py:network --batch examples/overhead_tf.py:with_int
    fastnet profile examples/overhead_tf.py:network --batch examples/overhead_tf.py:with_tensor
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import fastnet
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

BATCH_SIZE = 32
EPOCHS = 6
STEPS = 10  # an epoch, which is short enough to see several

Batch = dict[str, Any]


def network() -> fastnet.BaseNetwork:
    """Make the network."""
    model = fastnet.build(make_model, optimizer_fn="adam", model_name="digits")
    return fastnet.Network(
        [
            ModelOp(model, inputs="image", outputs="scores"),
            CrossEntropy(inputs=("scores", "label"), outputs="loss", from_logits=True),
            WarmUp(inputs=("loss", "epoch"), outputs="loss"),
            UpdateOp(model, loss_name="loss"),
        ]
    )


def make_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
    )


class WarmUp(TensorOp):
    """Let a loss count in full from the last epoch on, and less before."""

    def forward(self, data: list[Any], state: dict[str, Any]) -> tf.Tensor:
        loss, epoch = data
        return loss * (epoch / EPOCHS)


def with_int() -> Iterator[Batch]:
    """Return batches whose epoch is an int: no tensor, and so a constant of what is traced."""
    return batches(int)


def with_tensor() -> Iterator[Batch]:
    """Return batches whose epoch is a tensor, like everything else."""
    return batches(np.float32)


def batches(number: Callable[[int], Any]) -> Iterator[Batch]:
    digits = load_digits()
    for epoch in range(1, EPOCHS + 1):
        for start in range(0, STEPS * BATCH_SIZE, BATCH_SIZE):
            chosen = slice(start, start + BATCH_SIZE)
            yield {
                "image": digits.data[chosen].astype("float32") / 16,
                "label": digits.target[chosen],
                "epoch": number(epoch),
            }
