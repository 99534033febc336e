"""The models and tensors of TensorFlow, under the names of sides.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.integrations import sides

tf = pytest.importorskip("tensorflow")

MARKS = pytest.mark.tf

NAME, LAYER = "tf", "hidden"


def random_numbers_start_over() -> None:
    """Let what draws numbers start over, as it does wherever a network of FastEstimator is left."""
    tf.keras.backend.clear_session()


def batches(count: int, **settings: Any) -> list[dict[str, Any]]:
    """Make the batches of sides.py; one-hot classes are floats."""
    return [
        {
            **{key: tf.constant(value.numpy()) for key, value in batch.items()},
            "onehot": tf.one_hot(batch["label"].numpy(), 3),
        }
        for batch in sides.batches(count, **settings)
    ]


def mlp(width: int = 6, outputs: int = 3, hidden: int = 5) -> Any:
    """Make a small network; its weights follow from TensorFlow's seed."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((width,)),
            layers.Dense(hidden, activation="tanh", name="hidden"),
            layers.Dense(outputs, name="last"),
        ]
    )


def dense(inputs: int, outputs: int) -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((inputs,)), layers.Dense(outputs, name="inner")])


def noisy() -> Any:
    """Make a network that acts differently in training and out of it, and that draws numbers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(7),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def network_class(lib: Any) -> Any:
    return lib.network.TFNetwork


def tensor(values: Any) -> Any:
    return tf.constant(values)


def adam(rate: float) -> Any:
    return lambda: tf.keras.optimizers.legacy.Adam(rate)


def momentum() -> Any:
    return lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9)


def momenta(model: Any) -> list[np.ndarray]:
    """Return what a model's optimizer remembers."""
    optimizer = model.current_optimizer
    variables = optimizer.variables
    return [np.asarray(one) for one in (variables() if callable(variables) else variables)]


def weights(model: Any) -> Any:
    """Return a model's weights as they are now."""
    return model.get_weights()


def freeze(model: Any, first: bool, last: bool) -> None:
    """Decide which of the two layers of an `mlp` are not trained."""
    model.layers[0].trainable = not first
    model.layers[1].trainable = not last
