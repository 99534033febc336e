"""One thread, and which versions of what were measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench import peers

# The libraries below torch read these when they are loaded.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def use_one_thread() -> None:
    """Make this process compute on one thread. Call it before anything imports torch."""
    os.environ.update(ONE_THREAD)
    import torch

    torch.set_num_threads(1)


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python, of torch and numpy, and of each peer that is here."""
    found = {"python": platform.python_version()}
    for distribution in ("torch", "numpy", "tensorflow-cpu", "tensorflow"):
        if version := peers.version_of(distribution):
            found[distribution] = version
    for name in peers.ORDER:
        peer = peers.load(name)
        if peer.available() and (version := peer.version()):
            found[peer.NAME] = version
    return found
