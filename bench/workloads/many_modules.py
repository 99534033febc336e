"""A network of 120 small modules, which shows whatever costs something for each module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.workloads.supervised import Supervised
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    from torch import nn


def layers() -> nn.Module:
    """Return the network: (8, 16) -> (8, 16), 60 linear layers and 60 activations."""
    from torch import nn

    return nn.Sequential(*(module for _ in range(60) for module in (nn.Linear(16, 16), nn.Tanh())))


WORKLOADS = (
    Supervised(
        "modules120_train", "120 modules train step", True, layers, (8, 16), 16, Goal(1.03, 1.44)
    ),
    Supervised("modules120_infer", "120 modules infer step", False, layers, (8, 16), 16),
)
