"""The baseline in TensorFlow for networks that run op by op: the calls of an op, one by one."""

from __future__ import annotations

from bench.peers import installed
from bench.peers._dispatch import by_hand
from bench.program import Program
from bench.workloads.dispatch import Dispatch
from bench.workloads.workload import Workload

NAME = "eager calls"


def available() -> bool:
    """Return whether TensorFlow is installed."""
    return installed("tensorflow")


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the program of the calls."""
    if isinstance(workload, Dispatch):
        return by_hand(workload)
    from bench.peers import _tf_op_program

    return _tf_op_program.eager(workload)
