"""A network so small that its step is mostly overhead: 16-32-4, batch 8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.workloads.supervised import Supervised
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    from torch import nn


def layers() -> nn.Module:
    """Return the network: (8, 16) -> (8, 4)."""
    from torch import nn

    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


WORKLOADS = (
    Supervised("mlp_train", "MLP train step", True, layers, (8, 16), 4, Goal(1.05, 2.48)),
    Supervised("mlp_infer", "MLP infer step", False, layers, (8, 16), 4, Goal(1.10, 1.90)),
)
