"""Marks between the parts of a process whose instructions are counted, each by itself."""

from __future__ import annotations

import os
import subprocess
import time

# A system call that nothing else makes: callgrind writes down what was counted when it is entered.
MARK = "getppid"


def mark() -> None:
    """Begin the next part."""
    os.getppid()


def start_counting() -> None:
    """Have callgrind count from now on: the imports of a framework take minutes if it does.

    Raises:
        RuntimeError: If this process does not run under callgrind.
    """
    control = subprocess.Popen(
        ["callgrind_control", "-i", "on", str(os.getpid())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while control.poll() is None:  # it is heard by a process that runs
        time.sleep(0.001)
    if control.returncode:
        raise RuntimeError(f"callgrind_control ended with {control.returncode}")
