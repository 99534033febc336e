"""The programs that call one function: the framework's own, or a backend's that finds it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.program import Program
from bench.workloads.dispatch import Dispatch, Step


def by_hand(workload: Dispatch) -> Program:
    """Call the framework's function, as a person would who knows what the values are."""
    calls: dict[str, Step] = import_module(f"bench.peers._{workload.kind}_functions").CALLS
    return Program(calls[workload.call.name], workload.values())


def of_package(workload: Dispatch, package: str) -> Program | None:
    """Call the function of a package's backend.

    Args:
        workload: Which function.
        package: `"fastnet"` or `"fastestimator"`.
    """
    name = workload.call.name
    backend: Any = import_module(f"{package}.backend")
    function: Any = getattr(backend, name)
    return Program(workload.call.step(function), workload.values())
