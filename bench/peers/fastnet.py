"""fastnet itself."""

from __future__ import annotations

from bench.peers import installed, version_of
from bench.peers._dispatch import of_package
from bench.program import Program
from bench.workloads.dispatch import Dispatch
from bench.workloads.workload import Workload

NAME = "fastnet"


def available() -> bool:
    """Return whether fastnet is installed."""
    return installed("fastnet")


def version() -> str | None:
    """Return fastnet's version."""
    return version_of("fastnet")


def make(workload: Workload) -> Program | None:
    """Return fastnet's program."""
    if isinstance(workload, Dispatch):
        return of_package(workload, "fastnet")
    if workload.framework == "tf":
        from bench.peers._tf_network_program import TFNetworkPrograms

        return TFNetworkPrograms("fastnet").make(workload)
    from bench.peers._torch_network_program import TorchNetworkPrograms

    return TorchNetworkPrograms("fastnet").make(workload)
