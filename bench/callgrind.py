"""Counts instructions of parts of a process with callgrind, all in one run of it.

The process calls `bench.marks.mark` between its parts. Instructions, unlike time, are the same on a
busy machine; with the same hashes and no garbage collection, they are the same always.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.marks import MARK
from bench.runner import ROOT, environment

# Lines of a profile that are no costs begin otherwise.
_COST = frozenset("0123456789+-*")


class NoValgrind(Exception):
    """Valgrind is not installed."""


@dataclass(frozen=True)
class Count:
    """Instructions of one part of a process.

    Attributes:
        total: All of them.
        own: Those in the objects that were asked for, without what these call.
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
        command: What to run.
        within: What the paths of the objects contain whose own instructions are wanted.
        late: Whether the process says by `bench.marks.start_counting` from when on to count.

    Returns:
        A count for each part between two marks: what comes before the first and after the last is
        left out.

    Raises:
        NoValgrind: If there is no valgrind.
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
        # With hashes that differ from run to run, so do the dicts' collisions.
        variables = {**environment(), "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            watched, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode or not profile.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise RuntimeError(f"{' '.join(watched)} ended with {done.returncode}:\n{said}")
        with profile.open() as lines:
            return parts(lines, within)[1:-1]


def parts(lines: Iterable[str], within: str) -> list[Count]:
    """Return the counts of each part of a profile in callgrind's format.

    Args:
        lines: The profile's lines.
        within: As for `count`.
    """
    found: list[Count] = []
    names: dict[str, str] = {}
    own = 0
    counts_here = called = False
    for line in lines:
        first = line[:1]
        if first in _COST:
            # The line after a call holds what the callee took, which is not the caller's own.
            if counts_here and not called:
                own += int(line.rsplit(None, 1)[1])
            called = False
        elif line.startswith("calls="):
            called = True
        elif line.startswith(("ob=", "cob=")):
            # A name is written once, and a number stands for it from then on.
            number, _, name = line.partition("=")[2].strip().partition(" ")
            names.setdefault(number, name)
            if first == "o":
                counts_here = within in names[number]
        elif line.startswith("totals:"):
            found.append(Count(int(line.split()[1]), own))
            own = 0
            counts_here = False
    return found
