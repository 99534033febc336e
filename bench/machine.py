"""One thread, and which versions of what were measured."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench import peers

if TYPE_CHECKING:
    from bench.workloads.workload import Framework

# The libraries below torch read these when they are loaded.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# And these TensorFlow and Keras: to be quiet, and to work together.
TF_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}

_PACKAGES: dict[Framework, str] = {"torch": "torch", "tf": "tensorflow"}
_DISTRIBUTIONS: dict[Framework, tuple[str, ...]] = {
    "torch": ("torch", "numpy", "tensorflow-cpu", "tensorflow"),
    "tf": ("tensorflow-cpu", "tensorflow", "keras", "numpy"),
}


def has(framework: Framework) -> bool:
    """Return whether a framework is installed in this interpreter."""
    return peers.installed(_PACKAGES[framework])


@cache
def use_one_thread(framework: Framework) -> None:
    """Make this process compute on one thread. Call it before anything imports the framework.

    TensorFlow runs a graph in a thread of its own even where it has only one, while the caller
    waits. So the process is put on one core for it: what a core costs to wake up is not the step's.

    Args:
        framework: What computes.
    """
    os.environ.update(ONE_THREAD)
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
        return
    os.environ.update(TF_SETTINGS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions(framework: Framework) -> dict[str, str]:
    """Return the versions of Python, of the framework and numpy, and of each peer that is here.

    Args:
        framework: Whose peers to ask.
    """
    found = {"python": platform.python_version()}
    for distribution in _DISTRIBUTIONS[framework]:
        if version := peers.version_of(distribution):
            found[distribution] = version
    for name in peers.BY_FRAMEWORK[framework]:
        peer = peers.load(name)
        if peer.available() and (version := peer.version()):
            found[peer.NAME] = version
    return found
