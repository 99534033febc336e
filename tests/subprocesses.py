"""Python programs that tests run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(
    *arguments: object, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds what this process does, with other environment variables."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=1800,
    )
