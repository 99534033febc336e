"""Models and networks of either framework, for the tests of the swap."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def network(fe: Any, framework: str, ops: Any, **settings: Any) -> Any:
    """Make a network of a framework, whether its ops hold a model or not."""
    name = "TFNetwork" if framework == "tf" else "TorchNetwork"
    return getattr(sys.modules["fastestimator.network"], name)(ops, **settings)


def linear(framework: str, weights: Any = ((1.0, 2.0),)) -> Any:
    """Make a model that multiplies by a matrix, one row for each output."""
    matrix = np.asarray(weights, "float32")
    if framework == "torch":
        import torch

        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        layer.weight.data = torch.from_numpy(matrix.copy())
        return layer
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((matrix.shape[1],)), layers.Dense(matrix.shape[0], use_bias=False)]
    )
    model.set_weights([matrix.T])
    return model


def matrix_of(model: Any) -> Any:
    """Return the matrix that a linear model has now."""
    if hasattr(model, "get_weights"):
        return model.get_weights()[0].T
    return model.weight.detach().numpy().copy()


def gradient_descent(framework: str, rate: float) -> Any:
    """Return the function that makes plain gradient descent, as `build` asks for it."""
    if framework == "torch":
        import torch

        def make(parameters: Any) -> Any:
            return torch.optim.SGD(parameters, lr=rate)

        return make
    import tensorflow as tf

    def make_keras() -> Any:
        return tf.keras.optimizers.legacy.SGD(rate)

    return make_keras
