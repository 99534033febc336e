"""Lightning Fabric: a hand-written loop around a wrapped model and optimizer."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from lightning_utilities.core.apply_func import apply_to_collection

from bench.peers.loops import nest_map, wrapped_loop
from bench.program import Program
from bench.workloads.nests import Nest
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Workload


def make(workload: Workload) -> Program | None:
    """Return Fabric's program for steps of models and for nests."""
    if isinstance(workload, Supervised):
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        return wrapped_loop(workload, fabric.setup, fabric.backward)
    if isinstance(workload, Nest):
        return nest_map(workload, lambda nest, map_: apply_to_collection(nest, torch.Tensor, map_))
    return None
