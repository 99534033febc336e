"""The baseline in TensorFlow for batches that vary: one trace, the first axis left open."""

from __future__ import annotations

from bench.peers import installed
from bench.program import Program
from bench.workloads.workload import Workload

NAME = "concrete, any size"


def available() -> bool:
    """Return whether TensorFlow is installed."""
    return installed("tensorflow")


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the concrete function's program."""
    from bench.peers import _tf_concrete_program

    return _tf_concrete_program.make(workload, any_size=True)
