"""optree: a compiled map over trees."""

from __future__ import annotations

import torch

from bench.peers import installed, version_of
from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.nest import Nest
from bench.workloads.workload import Workload

NAME = "optree"


def available() -> bool:
    """Return whether optree is installed."""
    return installed("optree")


def version() -> str | None:
    """Return optree's version."""
    return version_of("optree")


def make(workload: Workload) -> Program | None:
    """Return optree's program. It maps over nests and does nothing else."""
    if not isinstance(workload, Nest):
        return None
    from optree import tree_map

    detach = torch.Tensor.detach
    if workload.action == "detach":
        return Program(lambda nest: tree_map(detach, nest), workload.nest())
    return Program(lambda nest: tree_map(lambda leaf: leaf.to(DEVICE), nest), workload.nest())
