"""Whether a peer does the work that it is timed for: its results beside the baseline's."""

from __future__ import annotations

from functools import partial

from bench import peers
from bench.program import Program
from bench.workloads.workload import Workload


def check(workload: Workload, peer: str) -> bool:
    """Run a few steps of `peer` and of the bare loop, and compare results and trained weights.

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
    """Compare `program` with the bare loop, where one exists."""
    baseline = peers.load("bare").make(workload)
    for _ in range(workload.steps_to_check):
        expected = None if baseline is None else baseline.run_once()
        workload.check(expected, program.run_once(), program.extra_keys)
    if baseline is not None and baseline.model is not None and program.model is not None:
        import torch

        for (name, expected), result in zip(
            baseline.model.named_parameters(), program.model.parameters(), strict=True
        ):
            said = partial("weights of {}: {}".format, name)
            torch.testing.assert_close(result, expected, msg=said)
