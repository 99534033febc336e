"""Whether a peer does the work that it is timed for: its results beside the baseline's."""

from __future__ import annotations

from typing import Any

from bench import peers
from bench.program import Program
from bench.workloads.workload import Workload


def check(workload: Workload, peer: str) -> bool:
    """Run a few steps of `peer` and of the baseline, and compare results and trained weights.

    Args:
        workload: What to do.
        peer: The name of the peer's module.

    Returns:
        Whether there was something to check: False if the peer has no such thing.

    Raises:
        AssertionError: If results or weights differ.
    """
    program = peers.load(peer).make(workload)
    if program is None:
        return False
    try:
        _check_program(workload, program)
    finally:
        program.close()
    return True


def _check_program(workload: Workload, program: Program) -> None:
    """Compare `program` with the baseline, where one exists."""
    baseline = peers.load(workload.baseline).make(workload)
    for _ in range(workload.steps_to_check):
        expected: Any = None if baseline is None else baseline.run_once()
        if program.lacks:
            expected = {key: value for key, value in expected.items() if key not in program.lacks}
        workload.check(expected, program.run_once(), program.extra_keys)
    if baseline is not None and baseline.model is not None and program.model is not None:
        workload.check_weights(baseline.model, program.model)
