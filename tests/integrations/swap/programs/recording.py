"""What the programs share: data, models of both frameworks, and a trace that takes notes."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastestimator.dataset import NumpyDataset
from fastestimator.trace import Trace
from sklearn.datasets import load_digits

_kept: list[Any] = []


class Record(Trace):
    """Takes down values of every step."""

    def __init__(self, *keys: str, mode: Any = None) -> None:
        super().__init__(inputs=keys, mode=mode)
        self.keys = keys
        self.steps: list[Any] = []

    def on_batch_end(self, data: Any) -> None:
        where = (self.system.mode, self.system.epoch_idx, self.system.ds_id)
        self.steps.append((where, {key: as_array(data[key]) for key in self.keys if key in data}))


def as_logged(value: Any) -> Any:
    """Return a number as a float, a learning rate as it is printed, and text as it is."""
    if isinstance(value, np.float32):
        return str(value)
    return float(value) if np.ndim(value) == 0 and not isinstance(value, str) else value


def logged(summary: Any) -> dict[str, Any]:
    """List what a summary has of every mode, the times aside."""
    return {
        f"{mode} {key} {step}": as_logged(value)
        for mode, values in summary.history.items()
        for key, history in values.items()
        for step, value in history.items()
        if not key.endswith(("(sec)", "/sec"))
    }


def as_array(value: Any) -> Any:
    """Turn a tensor of any framework into an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.array(value)


def weights(model: Any) -> list[Any]:
    """List a model's weights."""
    if hasattr(model, "state_dict"):
        return [as_array(value) for value in model.state_dict().values()]
    return [np.asarray(value) for value in model.get_weights()]


def memory(model: Any) -> list[Any]:
    """List what a model's optimizer remembers."""
    optimizer = model.current_optimizer
    if hasattr(model, "state_dict"):
        state = optimizer.state_dict()["state"]
        return [as_array(state[i][name]) for i in sorted(state) for name in sorted(state[i])]
    variables = optimizer.variables
    return [np.asarray(one) for one in (variables() if callable(variables) else variables)]


def digits(first: int, last: int, images: bool = False, framework: str = "torch") -> NumpyDataset:
    """Take some of scikit-learn's digits."""
    data = load_digits()
    x = (data.images[first:last] / 16).astype("float32")
    if images:
        x = x[:, None] if framework == "torch" else x[..., None]
    else:
        x = x.reshape(-1, 64)
    arrays = {"x": x, "y": data.target[first:last].astype("int64")}
    # reports tell things apart by their ids, so that none may be that of another that is gone
    _kept.append(arrays)
    return NumpyDataset(arrays)


def mlp(framework: str, inputs: int = 64, outputs: int = 10, hidden: int = 32) -> Any:
    """Make a small network."""
    if framework == "torch":
        import torch

        return torch.nn.Sequential(
            torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs)
        )
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((inputs,)), layers.Dense(hidden, "relu"), layers.Dense(outputs)]
    )
