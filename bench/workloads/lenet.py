"""A small convolutional network on 28 x 28 images, batch 32: a step that is mostly arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.workloads.supervised import Supervised

if TYPE_CHECKING:
    from torch import nn


def layers() -> nn.Module:
    """Return the network: (32, 1, 28, 28) -> (32, 10)."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


WORKLOADS = (
    Supervised("lenet_train", "LeNet train step", True, layers, (32, 1, 28, 28), 10),
    Supervised("lenet_infer", "LeNet infer step", False, layers, (32, 1, 28, 28), 10),
)
