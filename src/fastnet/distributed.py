"""Distributed training: joining the other processes, and combining their results.

A thin layer over `torch.distributed` and `tf.distribute`. In a single process, the functions do
nothing, or return the values for one process.

>>> from fastnet import distributed
>>> with distributed.run():
...     distributed.rank(), distributed.world_size(), distributed.is_main()
(0, 1, True)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastnet.errors import RankError, add_note
from fastnet.util.launchers import tf_workers, torch_processes
from fastnet.util.lazy import import_module

__all__ = [
    "RankError",
    "barrier",
    "gather",
    "init",
    "is_main",
    "rank",
    "run",
    "shutdown",
    "world_size",
]

_LIBRARIES = {"torch": "torch", "tf": "tensorflow"}


def init(
    framework: str | None = None, backend: str | None = None, timeout: float | None = None
) -> None:
    """Join the other processes that the launcher has started; in a single process do nothing.

    A process group or strategy that already exists is used unchanged.

    Args:
        framework: "torch" or "tf". None to read it from the environment: torch if torchrun started
            the program, TensorFlow if there is a `TF_CONFIG`.
        backend: The communication backend: for torch such as "nccl" or "gloo", for TensorFlow
            "ring" or "nccl". None for the best one for the device.
        timeout: The number of seconds after which a collective call fails; None for the default of
            the framework.

    Raises:
        ValueError: If variables are missing in the environment.
    """
    if framework is None:
        framework = "torch" if torch_processes() > 1 else "tf" if tf_workers() > 1 else None
    if framework is not None:
        _module_for(framework).start(backend, timeout)


def shutdown() -> None:
    """Leave the other processes; in a single process do nothing."""
    part = _processes()
    if part is not None:
        part.stop()


def rank() -> int:
    """Return the rank of this process, from 0."""
    part = _processes()
    return 0 if part is None else int(part.rank())


def world_size() -> int:
    """Return the number of processes."""
    part = _processes()
    return 1 if part is None else int(part.world_size())


def is_main() -> bool:
    """Return whether this is rank 0, which prints and writes files."""
    return rank() == 0


def barrier() -> None:
    """Wait until all processes have called this."""
    part = _processes()
    if part is not None:
        part.exchange(None)


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Combine the results of all processes, on each of them. All processes call this.

    Args:
        result: Values by key, such as what `run_step` returns, with the same keys on each process.
        samples: The number of samples in this process's result. None for the length of the first
            axes in it; if that is ambiguous, all processes have equal weight.

    Returns:
        A value by key. Scalars are averaged, weighted by the number of samples and ignoring NaN.
        Values with axes are concatenated along the first axis, in rank order. For other values, the
        value of rank 0 is returned. In a single process, a copy of the dict.

    Raises:
        TypeError: If the result is not a mapping.
        ValueError: If the processes have different keys, or different numbers of values under a
            key.
    """
    if not isinstance(result, Mapping):
        raise TypeError(
            f"gather takes a result, a dict of values by key, but got {type(result).__name__}."
        )
    part = _processes()
    if part is None:
        return dict(result)
    results, sizes = zip(*part.exchange((dict(result), samples)), strict=True)
    joined: dict[str, Any] = part.join_results(results, sizes, part.KIND)
    return joined


@contextmanager
def run(
    framework: str | None = None, backend: str | None = None, timeout: float | None = None
) -> Iterator[None]:
    """Call `init`, which has the same arguments, before a block, and `shutdown` after it.

    An error in the block gets a note that names the rank. torchrun prints it and ends the other
    processes. Without torchrun they fail in their next collective call: immediately if gloo detects
    that a process has exited, otherwise after `timeout`.
    """
    init(framework, backend, timeout)
    try:
        yield
    except Exception as error:
        part = _processes()
        if part is not None:
            add_note(error, f"Raised on rank {part.rank()} of {part.world_size()}.")
            part.note_failure(error)
        raise
    finally:
        shutdown()


@contextmanager
def together(part: Any, task: str) -> Iterator[None]:
    """Raise a RankError on all processes if the block raises an error on one of them.

    If `part` is None, this does nothing.
    """
    if part is None:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    try:
        texts = part.exchange(None if failure is None else f"{type(failure).__name__}: {failure}")
    finally:
        if failure is not None:
            raise failure
    for other, text in enumerate(texts):
        if text is not None:
            raise RankError(f"{task} has failed on rank {other}, so it fails here too: {text}")


def processes_of(framework: str) -> Any:
    """Return the framework's module for communicating processes, or None in a single process."""
    module = _module_for(framework)
    return module if module.world_size() > 1 else None


def _processes() -> Any:
    """Return the module of the framework that has several processes, or None."""
    # A framework that was never imported has joined no processes.
    imported = [name for name, library in _LIBRARIES.items() if library in sys.modules]
    return next(filter(None, map(processes_of, imported)), None)


def _module_for(framework: str) -> Any:
    if framework not in _LIBRARIES:
        raise ValueError(f"The framework must be 'torch' or 'tf', but got {framework!r}.")
    return import_module(f"fastnet.backend.{framework}.processes")
