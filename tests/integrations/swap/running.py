"""What tests of documented behaviour run: tensors, models and networks of either framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def array(value: Any) -> Any:
    """Turn a tensor, or what holds tensors, into arrays."""
    if isinstance(value, (list, tuple)):
        return [array(one) for one in value]
    return value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)


def tensor(value: Any, framework: str) -> Any:
    """Make a tensor of floats from numbers, or one of its own type from an array."""
    values = value if isinstance(value, np.ndarray) else np.asarray(value, "float32")
    if framework == "torch":
        import torch

        return torch.tensor(values)
    import tensorflow as tf

    return tf.convert_to_tensor(values)


def network(fe: Any, framework: str, ops: Any, **settings: Any) -> Any:
    """Make a network of a framework, whether its ops hold a model or not."""
    name = "TFNetwork" if framework == "tf" else "TorchNetwork"
    return getattr(sys.modules["fastestimator.network"], name)(ops, **settings)


def run(
    fe: Any,
    framework: str,
    ops: Any,
    batch: Mapping[str, Any],
    mode: str = "infer",
    epoch: int = 1,
    ds_id: str = "",
    **settings: Any,
) -> dict[str, Any]:
    """Run one batch, which is made into tensors, through a network of just these ops.

    Returns:
        The result's values, as arrays.
    """
    made = network(fe, framework, ops, **settings)
    tensors = {key: tensor(value, framework) for key, value in batch.items()}
    result = made.transform(tensors, mode=mode, epoch=epoch, ds_id=ds_id)
    return {key: array(result[key]) for key in result}


def is_swapped(fe: Any) -> bool:
    """Return whether fastnet is in FastEstimator's place now."""
    return str(fe.Network.__module__).startswith("fastnet.")


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
