"""Accelerate: a hand-written loop around a prepared model and optimizer."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.utils.operations import recursively_apply

from bench.peers.loops import nest_map, wrapped_loop
from bench.program import Program
from bench.workloads.nests import Nest
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Workload


def make(workload: Workload) -> Program | None:
    """Return Accelerate's program for steps of models and for nests."""
    if isinstance(workload, Supervised):
        accelerator = Accelerator(cpu=True)
        return wrapped_loop(workload, accelerator.prepare, accelerator.backward)
    if isinstance(workload, Nest):
        return nest_map(workload, lambda nest, function: recursively_apply(function, nest))
    return None
