"""Fits with FastEstimator's Estimator, unswapped and swapped, each in a fresh process, in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bench.workloads.workload import Framework

SIDES = {"fastestimator": (), "fastnet": ("--swapped",)}
"""The peers, and what tells the process which of them runs the steps."""

_ROUNDS_PER_FIT = 12
_TIMEOUT_S = 180
# What rounding may differ by in a loss at the beginning, and at the end in losses and weights.
_FIRST_STEPS, _AT_FIRST, _AT_LAST = 100, 1e-6, 1e-5


@dataclass(frozen=True)
class Fit:
    """What one process measured.

    Attributes:
        epochs: How many epochs it trained for.
        steps: The nanoseconds of each call of `Network.run_step`.
        whole: The nanoseconds of `Estimator.fit`.
        losses: The loss of each step.
        weights: The trained weights, one after the other.
    """

    epochs: int
    steps: list[int]
    whole: int
    losses: list[float]
    weights: list[float]

    @property
    def later_steps(self) -> list[int]:
        """The steps but for the first epoch's, in which graphs are traced and caches fill."""
        return self.steps[len(self.steps) // self.epochs :]

    @property
    def median_step(self) -> float:
        """The median of the later steps."""
        return statistics.median(self.later_steps)

    @property
    def shortest_step(self) -> float:
        """The shortest step: what the machine does meanwhile only adds to it."""
        return min(self.later_steps)


def count(rounds: int) -> int:
    """Return how many fits of each side stand for some rounds of a step.

    Example:
        >>> count(101), count(15), count(0)
        (8, 1, 1)
    """
    return max(1, rounds // _ROUNDS_PER_FIT)


@cache
def in_turn(framework: Framework, optimizer: str, times: int) -> dict[str, list[Fit]]:
    """Fit unswapped and swapped in turn. Asked again, it gives the same fits.

    Args:
        framework: "torch" or "tf".
        optimizer: The name of the model's optimizer.
        times: How often on each side.

    Returns:
        The fits of each side, by peer.

    Raises:
        RuntimeError: If a process fails, with the end of what it printed.
        AssertionError: If losses or weights of the two sides differ.
    """
    fits: dict[str, list[Fit]] = {side: [] for side in SIDES}
    for turn in range(times):
        # the one that begins is the other one each time
        for side in list(SIDES)[:: -1 if turn % 2 else 1]:
            fits[side].append(_run(framework, optimizer, side))
        check(fits["fastestimator"][-1], fits["fastnet"][-1])
    return fits


def check(expected: Fit, result: Fit) -> None:
    """Raise `AssertionError` unless two fits have come to the same.

    Args:
        expected: The fit that was not swapped.
        result: The one that was.
    """
    assert len(result.losses) == len(expected.losses), "the numbers of steps differ"
    for step, (mine, other) in enumerate(zip(result.losses, expected.losses, strict=True)):
        allowed = _AT_FIRST if step < _FIRST_STEPS else _AT_LAST
        assert abs(mine - other) <= allowed * max(1.0, abs(other)), (
            f"loss of step {step}: {mine} instead of {other}"
        )
    assert len(result.weights) == len(expected.weights), "the numbers of weights differ"
    # unlike `max`, this does not lose a weight that is no number
    furthest = np.abs(np.subtract(result.weights, expected.weights)).max()
    assert furthest <= _AT_LAST, f"weights differ by {furthest}"


def _run(framework: Framework, optimizer: str, side: str) -> Fit:
    """Fit in a fresh process of this interpreter."""
    with tempfile.TemporaryDirectory() as home:
        output = Path(home) / "fit.json"
        command = [sys.executable, "-m", "bench.fit_process", framework, *SIDES[side]]
        done = subprocess.run(
            [*command, "--optimizer", optimizer, "--output", str(output)],
            # FastEstimator keeps its history at home, and sets torch to as many threads as there
            # are cores when a fit begins: threads that wait for each other are no step's own cost.
            env={**os.environ, "HOME": home, "FE_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
        return Fit(**json.loads(output.read_text()))
