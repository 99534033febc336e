"""fastnet itself."""

from __future__ import annotations

from bench.peers import installed, version_of
from bench.peers._network_program import NetworkPrograms
from bench.program import Program
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
    return NetworkPrograms("fastnet").make(workload)
