"""Gradients and updates of a linear model, written out in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Line:
    """A model x @ kernel + bias that is trained by the mean squared difference from t.

    Args:
        kernel: Shape (inputs, outputs).
        bias: Shape (outputs,).
    """

    def __init__(self, kernel: Array, bias: Array) -> None:
        self.kernel = kernel.astype("float64")
        self.bias = bias.astype("float64")

    def predict(self, batch: Mapping[str, Array]) -> Array:
        predicted: Array = batch["x"] @ self.kernel + self.bias
        return predicted

    def loss(self, batch: Mapping[str, Array]) -> Array:
        return np.array(np.mean((self.predict(batch) - batch["t"]) ** 2), "float32")

    def gradients(self, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        slope = 2 * (self.predict(batch) - batch["t"]) / batch["t"].size
        return batch["x"].T @ slope, slope.sum(0)

    def descend(self, gradients: Sequence[Array], rate: float = 0.1) -> None:
        self.kernel = self.kernel - rate * gradients[0]
        self.bias = self.bias - rate * gradients[1]

    def train(self, batch: Mapping[str, Array], rate: float = 0.1) -> Array:
        """Take a step of gradient descent, and give the loss before it."""
        loss = self.loss(batch)
        self.descend(self.gradients(batch), rate)
        return loss

    @property
    def weights(self) -> list[Array]:
        return [self.kernel.astype("float32"), self.bias.astype("float32")]


def make_batches(
    count: int, inputs: int = 3, outputs: int = 2, size: int = 4, seed: int = 0
) -> list[dict[str, Array]]:
    """Draw batches of "x" and "t"."""
    source = np.random.default_rng(seed)
    return [
        {
            "x": source.normal(size=(size, inputs)).astype("float32"),
            "t": source.normal(size=(size, outputs)).astype("float32"),
        }
        for _ in range(count)
    ]
