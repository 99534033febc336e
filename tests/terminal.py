"""A terminal of its own for a program that looks whether it has one."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress

_ROWS, _COLUMNS = 24, 200


def run_on_terminal(
    arguments: Sequence[str], results: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Python with its errors, and if wanted its results, on a terminal.

    Args:
        arguments: What Python is started with.
        results: Whether results go to the terminal too, or into a file.

    Returns:
        The finished process: what it showed on the terminal is its stderr.
    """
    reader, terminal = pty.openpty()
    # a new one has no size, and there is nothing to be seen on it
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=terminal if results else subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={
            **os.environ,
            "COLUMNS": str(_COLUMNS),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TERM": "xterm",
        },
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # which Linux raises when nobody has the other end open any more
        while part := os.read(reader, 65536):
            shown += part
    os.close(reader)
    printed, _ = process.communicate(timeout=300)
    return subprocess.CompletedProcess(
        process.args, process.returncode, printed or "", shown.decode()
    )
