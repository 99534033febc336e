"""Counts the instructions of parts of a process with callgrind, in one run of it.

The process calls `bench.marks.mark` between its parts. Unlike times, instructions are the same on a
busy machine; with fixed hashes and no garbage collection they are reproducible.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.marks import MARK, mark, start_counting
from bench.processes import ROOT, environment, last_lines

__all__ = ["Count", "NoValgrind", "count", "least_of", "mark", "parts", "start_counting"]

# Lines of costs in a profile begin with one of these.
_COST = frozenset("0123456789+-*")


class NoValgrind(Exception):
    """Valgrind is not installed."""


@dataclass(frozen=True)
class Count:
    """The instructions of one part of a process.

    Attributes:
        total: All instructions.
        own: Those in the objects that were asked for, without their callees.
    """

    total: float
    own: float

    def __sub__(self, other: Count) -> Count:
        return Count(self.total - other.total, self.own - other.own)

    def __truediv__(self, by: float) -> Count:
        return Count(self.total / by, self.own / by)


def count(command: Sequence[str], within: str, late: bool = False) -> list[Count]:
    """Run a process under callgrind and count each part of it.

    Args:
        command: The command line of the process.
        within: A part of the paths of the objects whose own instructions are counted.
        late: Whether counting starts with `bench.marks.start_counting`.

    Returns:
        A count for each part between two marks.

    Raises:
        NoValgrind: If valgrind is not installed.
        RuntimeError: If the process fails.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NoValgrind("valgrind is not installed (Debian, Ubuntu: apt install valgrind)")
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        watched = [valgrind, "--tool=callgrind", f"--dump-before={MARK}", "--combine-dumps=yes"]
        watched += [f"--callgrind-out-file={profile}", f"--instr-atstart={'no' if late else 'yes'}"]
        watched += command
        # Collisions in dicts depend on the hashes.
        variables = {**environment(), "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            watched, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode or not profile.exists():
            said = last_lines(done.stdout + done.stderr)
            raise RuntimeError(f"{' '.join(watched)} ended with {done.returncode}:\n{said}")
        with profile.open() as lines:
            return parts(lines, within)[1:-1]


def least_of(runs: Iterator[Count], count: int, steps: int) -> Count:
    """Return the instructions of a step: the least of some runs, less a run of no steps before."""
    nothing = next(runs)
    return min([(next(runs) - nothing) / steps for _ in range(count)], key=lambda one: one.total)


def parts(lines: Iterable[str], within: str) -> list[Count]:
    """Return the counts of each part of a profile in callgrind's format."""
    found: list[Count] = []
    names: dict[str, str] = {}
    own = 0
    counts_here = called = False
    for line in lines:
        first = line[:1]
        if first in _COST:
            # The line after a call is the cost of the callee.
            if counts_here and not called:
                own += int(line.rsplit(None, 1)[1])
            called = False
        elif line.startswith("calls="):
            called = True
        elif line.startswith(("ob=", "cob=")):
            # A name is written once, with a number that stands for it afterwards.
            number, _, name = line.partition("=")[2].strip().partition(" ")
            names.setdefault(number, name)
            if first == "o":
                counts_here = within in names[number]
        elif line.startswith("totals:"):
            found.append(Count(int(line.split()[1]), own))
            own = 0
            counts_here = False
    return found
