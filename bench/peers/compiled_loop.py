"""The loop by hand with its whole step compiled by `torch.compile`."""

from __future__ import annotations

from bench.peers._torch_compiled import available as has_compiler
from bench.peers._torch_compiled import make as make_compiled
from bench.program import Program
from bench.workloads.workload import Workload

NAME = "torch.compile, step"


def available() -> bool:
    """It needs a C++ compiler."""
    return has_compiler()


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the loop by hand with its whole step compiled by `torch.compile`."""
    return make_compiled(workload, of_step=True)
