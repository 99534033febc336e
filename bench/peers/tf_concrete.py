"""The baseline in TensorFlow: what a person who knows it well would write by hand.

The step is traced once, for batches of just the size that comes, and its concrete function is
called with the batch: no signature is worked out, nothing can trace again.
"""

from __future__ import annotations

from bench.peers import installed
from bench.program import Program
from bench.workloads.workload import Workload

NAME = "concrete function"


def available() -> bool:
    """Return whether TensorFlow is installed."""
    return installed("tensorflow")


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the concrete function's program."""
    from bench.peers import _tf_concrete_program

    return _tf_concrete_program.make(workload, any_size=False)
