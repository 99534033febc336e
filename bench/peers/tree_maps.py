"""Maps over trees: optree, which is compiled, and torch's own pytree."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.peers.loops import nest_map
from bench.program import Program
from bench.workloads.nests import Nest
from bench.workloads.workload import Workload


def make(workload: Workload, package: str) -> Program | None:
    """Return a package's map over nests."""
    if not isinstance(workload, Nest):
        return None
    tree_map: Any = import_module(package).tree_map
    return nest_map(workload, lambda nest, function: tree_map(function, nest))
