"""FastEstimator, whose API fastnet has.

It pins old versions of what it needs, so it mostly runs in an interpreter of its own.
"""

from __future__ import annotations

from bench.peers import installed, version_of
from bench.peers._dispatch import of_package
from bench.program import Program
from bench.workloads.dispatch import Dispatch
from bench.workloads.workload import Workload

NAME = "FastEstimator"


def available() -> bool:
    """Return whether FastEstimator is installed."""
    return installed("fastestimator")


def version() -> str | None:
    """Return FastEstimator's version."""
    return version_of("fastestimator")


def make(workload: Workload) -> Program | None:
    """Return FastEstimator's program."""
    if isinstance(workload, Dispatch):
        return of_package(workload, "fastestimator")
    if workload.framework == "tf":
        from bench.peers._tf_network_program import TFNetworkPrograms

        return TFNetworkPrograms("fastestimator").make(workload)
    from bench.peers._torch_network_program import TorchNetworkPrograms

    return TorchNetworkPrograms("fastestimator").make(workload)
