"""Marks between the parts of a process whose instructions are counted separately.

The module imports little, so that the process that counts the kernel stays the same.
"""

from __future__ import annotations

import os
import subprocess
import time

# A system call that nothing else makes: callgrind writes its counts when it is entered.
MARK = "getppid"


def mark() -> None:
    """Start the next part."""
    os.getppid()


def start_counting() -> None:
    """Let callgrind start to count; counting the imports of a framework would take minutes.

    Raises:
        RuntimeError: If this process does not run under callgrind.
    """
    control = subprocess.Popen(
        ["callgrind_control", "-i", "on", str(os.getpid())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while control.poll() is None:  # only a running process receives it
        time.sleep(0.001)
    if control.returncode:
        raise RuntimeError(f"callgrind_control ended with {control.returncode}")
