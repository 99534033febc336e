"""The model and the hand-written training step of digits.py in TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow logs the features of the CPU.

import tensorflow as tf

layers = tf.keras.layers

Batch = dict[str, tf.Tensor]
Step = Callable[[Batch], Batch]

CHANNEL_AXIS = -1  # images are (sample, row, column, channel)


def use_one_thread() -> None:
    """Compute on one thread; call this before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def set_seed(seed: int) -> None:
    """Seed the generator that draws the initial weights."""
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


def make_training_step(model: tf.keras.Model) -> Step:
    """Return a hand-written training step, traced once and called with flat tensors."""
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    def update(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(image, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(
                label, logits, from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return logits, loss

    # It is traced for batches of any size, like fastnet's.
    image, label = tf.TensorSpec((None, 8, 8, 1)), tf.TensorSpec((None,), tf.int64)
    update_traced = tf.function(update).get_concrete_function(image, label)

    def step(batch: Batch) -> Batch:
        logits, loss = update_traced(batch["image"], batch["label"])
        return {**batch, "logits": logits, "loss": loss}

    return step
