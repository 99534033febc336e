"""Several processes that train together: started, told apart, waited for, and ended as one.

Thin over `torch.distributed` and `tf.distribute`. Nothing of it is needed in one process, where
each of these functions does nothing, or gives the answer of a single one.

>>> from fastnet import distributed
>>> with distributed.run():
...     distributed.rank(), distributed.world_size(), distributed.is_main()
(0, 1, True)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastnet.errors import RankError, add_note
from fastnet.util.launchers import tf_workers, torch_processes
from fastnet.util.lazy import import_module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "RankError",
    "barrier",
    "compares_ranks",
    "gather",
    "init",
    "is_main",
    "rank",
    "run",
    "seed_ranks",
    "shutdown",
    "world_size",
]

_LIBRARIES = {"torch": "torch", "tf": "tensorflow"}
# The framework of the processes that `init` has started, and its `compare_ranks`.
_started: str | None = None
_compares = True


def init(
    framework: str | None = None,
    backend: str | None = None,
    device: Any = None,
    timeout: float | None = None,
    *,
    compare_ranks: bool = True,
) -> None:
    """Join the other processes that the launcher has started. In one process nothing is done.

    Args:
        framework: "torch" or "tf". None for that which the environment speaks of: torch for what
            torchrun sets, TensorFlow for a `TF_CONFIG`.
        backend: What torch is to communicate by, such as "nccl" or "gloo". None for the best that
            there is for the device.
        device: What the process is to compute on (torch only). None for the GPU of its
            `LOCAL_RANK` where each process of the machine has one, else the CPU.
        timeout: After how many seconds a rank is no longer waited for (torch only). None for
            torch's own.
        compare_ranks: Whether networks that train together compare, at each opening, what they are
            to run.

    A process group that the program has initialised itself is made use of as it is.

    Raises:
        ValueError: If the environment tells too little, or the device is not there.
    """
    global _started, _compares
    _compares = compare_ranks
    name = _chosen() if framework is None else framework
    if name is None:
        return
    settings = {"backend": backend, "device": device, "timeout": timeout}
    given = {key: value for key, value in settings.items() if value is not None}
    _module_for(name).start(**given)
    _started = name


def shutdown() -> None:
    """Leave the other processes. Nothing is done where there are none."""
    global _started, _compares
    part, _started, _compares = _processes(), None, True
    if part is not None:
        part.stop()


def rank() -> int:
    """Return the place of this process among all, from 0."""
    part = _processes()
    return 0 if part is None else int(part.rank())


def world_size() -> int:
    """Return how many processes there are."""
    part = _processes()
    return 1 if part is None else int(part.world_size())


def is_main() -> bool:
    """Return whether this process is the first: the one that prints, and writes files."""
    return rank() == 0


def barrier() -> None:
    """Wait until all processes have come here.

    Raises:
        RankError: If one of them is elsewhere in the program, or has failed.
    """
    part = _processes()
    if part is not None:
        part.barrier()


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Put the results of all processes together, on each of them.

    Args:
        result: Values by key, such as what `run_step` returns, or some of it. Every process calls
            this, with the same keys.
        samples: Of how many samples this process's result is. None for the one length of the first
            axes in it; where there are none, or several, all processes count alike, so that means
            of unevenly many samples come out wrong without it.

    Returns:
        A value by key. Of scalars the mean of those that are not NaN, in which a process counts by
        its number of samples. Everything that has an axis is joined along the first, in the order
        of the processes; of what is no number there is the first process's. In one process a copy
        of the dict.

    Raises:
        TypeError: If the result is no mapping.
        ValueError: If the processes have different keys, or one of them more values under a key.
        RankError: If another process is elsewhere in the program, or has failed.
    """
    if not isinstance(result, Mapping):
        raise TypeError(
            f"gather takes a result, a dict of values by key, but got {type(result).__name__}."
        )
    part = _processes()
    return dict(result) if part is None else dict(part.gather(result, samples))


def seed_ranks(seed: int) -> None:
    """Seed the random numbers of Python, numpy and the framework, each process's otherwise.

    Models are best built before it, from one seed: then all begin with the same weights, and only
    what is drawn from then on (dropout, augmentation) differs.

    Args:
        seed: The seed; a process adds its rank.
    """
    import random

    import numpy as np

    own = seed + rank()
    for framework in _imported_frameworks():
        _module_for(framework).seed(own)
    # last: a framework that is asked for its generators may draw from these to make them
    random.seed(own)
    np.random.seed(own)


class run:
    """`init` and `shutdown` around a program, so that all of its processes end together.

    When one raises, the others hear of it within a second: what they wait for is broken off, and
    each ends with a `RankError` that says which one failed, and how. One that cannot be stopped,
    because it is in a call that does not come back, is ended 15 seconds later, its error printed.
    Whoever is done before the others waits for them. All call `save_checkpoint`, `load_checkpoint`,
    `gather` and `barrier`: one that does not, and goes on where the others wait for it, ends all of
    them with a `RankError` that names both places.

    Args:
        framework: As for `init`.
        backend: As for `init`.
        device: As for `init`.
        timeout: As for `init`.
        compare_ranks: As for `init`.
        seed: What to seed the random numbers by, each process's otherwise (see `seed_ranks`). None
            to leave them.

    Raises:
        RankError: In the other processes, when one has raised; in all, when they are at different
            places.
    """

    def __init__(
        self,
        framework: str | None = None,
        backend: str | None = None,
        device: Any = None,
        timeout: float | None = None,
        *,
        compare_ranks: bool = True,
        seed: int | None = None,
    ) -> None:
        self._settings = {
            "framework": framework,
            "backend": backend,
            "device": device,
            "timeout": timeout,
            "compare_ranks": compare_ranks,
        }
        self._seed = seed
        self._watch: Any = None

    def __enter__(self) -> Self:
        """Start."""
        init(**self._settings)
        try:
            part = _processes()
            if part is not None:
                self._watch = part.watch()
            if self._seed is not None:
                seed_ranks(self._seed)
        except BaseException:
            shutdown()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the others, or tell them what has gone wrong.

        Args:
            kind: The class of the exception that ends the block, or None.
            error: The exception, or None.
            trace: Its traceback, or None.
        """
        watch, self._watch = self._watch, None
        if watch is None:
            shutdown()
            return
        if isinstance(error, SystemExit) and not error.code:
            error = None
        failed = watch.leave(error, shutdown)
        if isinstance(error, RankError) and str(error) == str(failed):
            return  # which this process has heard of where all meet
        if failed is not None:
            raise failed from (None if isinstance(error, KeyboardInterrupt) else error)
        if error is not None:
            add_note(error, f"Raised on rank {watch.rank} of {watch.world_size}.")


def compares_ranks() -> bool:
    """Return whether networks compare, at each opening, what the processes are to run."""
    return _compares


def _chosen() -> str | None:
    """Return the framework whose launcher has started this process as one of several."""
    for name in _imported_frameworks():
        if processes_of(name) is not None:
            return name  # the program has come together with the others by itself
    if torch_processes() > 1:
        return "torch"
    return "tf" if tf_workers() > 1 else None


def _processes() -> Any:
    """Find what there is for processes in the framework that has several; None for a single one."""
    if _started is not None:
        return _module_for(_started)
    return next(filter(None, map(processes_of, _imported_frameworks())), None)


def processes_of(framework: str) -> Any:
    """Return the framework's module for communicating processes, or None in a single process."""
    module = _module_for(framework)
    return module if module.world_size() > 1 else None


def _imported_frameworks() -> list[str]:
    # A framework that was never imported has started no processes.
    return [name for name, library in _LIBRARIES.items() if library in sys.modules]


def _module_for(framework: str) -> Any:
    if framework not in _LIBRARIES:
        raise ValueError(f"The framework must be 'torch' or 'tf', but got {framework!r}.")
    return import_module(f"fastnet.backend.{framework}.processes")
