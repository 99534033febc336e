"""Sets the threads of this process, and reports the processor and the installed versions."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench import peers

if TYPE_CHECKING:
    from bench.workloads.workload import Framework

# The libraries below torch, and JAX, read these when they are loaded.
_THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PJRT_NPROC"
# TensorFlow and Keras read these.
TF_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}

_PACKAGES: dict[Framework, str] = {"torch": "torch", "tf": "tensorflow"}
_DISTRIBUTIONS: dict[Framework, tuple[str, ...]] = {
    "torch": ("torch", "numpy", "tensorflow-cpu", "tensorflow"),
    "tf": ("tensorflow-cpu", "tensorflow", "keras", "numpy"),
}


def has(framework: Framework) -> bool:
    """Return whether a framework is installed in this interpreter."""
    return peers.installed(_PACKAGES[framework])


def settings_of_threads(count: int) -> dict[str, str]:
    """Return the environment variables of a process that computes on some threads."""
    return dict.fromkeys(_THREADS, str(count))


@cache
def use_threads(framework: Framework, count: int) -> None:
    """Make this process compute on some threads, before anything imports the framework.

    TensorFlow runs a graph in another thread even if its pools have one, while the caller waits. So
    a process with one thread is bound to one core: waking another core is not part of a step.
    """
    os.environ.update(settings_of_threads(count))
    if framework == "torch":
        import torch

        torch.set_num_threads(count)
        return
    os.environ.update(TF_SETTINGS)
    if count == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions(framework: Framework) -> dict[str, str]:
    """Return the versions of Python, the framework, numpy and each installed peer."""
    found = {"python": platform.python_version()}
    for distribution in _DISTRIBUTIONS[framework]:
        if version := peers.version_of(distribution):
            found[distribution] = version
    named = [peers.PEERS[name] for name in peers.BY_FRAMEWORK[framework]]
    return found | {peer.title: peer.version for peer in named if peer.available and peer.version}


def version_note(framework: Framework) -> str:
    """Return the versions that matter for fastnet alone."""
    kept = {"python", "fastnet", *_DISTRIBUTIONS[framework]}
    found = versions(framework)
    return ", ".join(f"{name} {version}" for name, version in found.items() if name in kept)
