"""torch's own pytree: a map over trees in Python."""

from __future__ import annotations

import torch

from bench.peers import installed, version_of
from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.nest import Nest
from bench.workloads.workload import Workload

NAME = "torch pytree"


def available() -> bool:
    """Return whether this torch has a pytree."""
    return installed("torch.utils._pytree")


def version() -> str | None:
    """Return torch's version, which is pytree's."""
    return version_of("torch")


def make(workload: Workload) -> Program | None:
    """Return pytree's program. It maps over nests and does nothing else."""
    if not isinstance(workload, Nest):
        return None
    from torch.utils._pytree import tree_map

    detach = torch.Tensor.detach
    if workload.action == "detach":
        return Program(lambda nest: tree_map(detach, nest), workload.nest())
    return Program(lambda nest: tree_map(lambda leaf: leaf.to(DEVICE), nest), workload.nest())
