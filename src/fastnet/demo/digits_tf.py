"""The model and optimizers of digits.py in TensorFlow."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow logs the features of the CPU.

import tensorflow as tf

layers, optimizers = tf.keras.layers, tf.keras.optimizers

CHANNEL_AXIS = -1  # images are (sample, row, column, channel)


def use_one_thread() -> None:
    """Compute on one thread; call this before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def set_seed(seed: int) -> None:
    """Seed what weights are drawn from."""
    tf.keras.utils.set_random_seed(seed)


def make_model() -> tf.keras.Model:
    """Make the convolutional network: images of shape (batch, 8, 8, 1) to (batch, 10) logits."""
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, kernel_size=3, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, kernel_size=3, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPool2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def make_adam() -> Any:
    """Make the optimizer that training begins with."""
    return optimizers.Adam(2e-3)


def make_sgd() -> Any:
    """Make the optimizer that training ends with."""
    return optimizers.SGD(0.01, momentum=0.9)
