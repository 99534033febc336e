"""Distributed training: joining the other processes, and combining their results.

A thin layer over `torch.distributed` and `tf.distribute`. In a single process, the functions do
nothing, or return the values for one process.

>>> from fastnet import distributed
>>> with distributed.run():
...     distributed.rank(), distributed.world_size(), distributed.is_main()
(0, 1, True)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fastnet._nest import leaves_of, map_leaves
from fastnet.errors import RankError, add_note
from fastnet.framework import Processes
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
        if torch_processes() > 1:
            framework = "torch"
        elif tf_workers() > 1:
            framework = "tf"
    if framework is not None:
        _processes_module(framework).init(backend, timeout)


def shutdown() -> None:
    """Leave the other processes; in a single process do nothing."""
    processes = _current_processes()
    if processes is not None:
        processes.shutdown()


def rank() -> int:
    """Return the rank of this process, from 0."""
    processes = _current_processes()
    return 0 if processes is None else int(processes.rank())


def world_size() -> int:
    """Return the number of processes."""
    processes = _current_processes()
    return 1 if processes is None else int(processes.world_size())


def is_main() -> bool:
    """Return whether this is rank 0, which prints and writes files."""
    return rank() == 0


def barrier() -> None:
    """Wait until all processes have called this."""
    processes = _current_processes()
    if processes is not None:
        processes.all_gather_object(None)


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
    processes = _current_processes()
    if processes is None:
        return dict(result)
    results, sizes = zip(*processes.all_gather_object((dict(result), samples)), strict=True)
    return _combine_results(results, sizes, processes.TENSOR_OPS)


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
        processes = _current_processes()
        if processes is not None:
            add_note(error, f"Raised on rank {processes.rank()} of {processes.world_size()}.")
            processes.explain_failure(error)
        raise
    finally:
        shutdown()


@contextmanager
def raise_on_all_ranks(processes: Processes | None, task: str) -> Iterator[None]:
    """Raise a RankError on all processes if the block raises an error on one of them.

    If `processes` is None, this does nothing.
    """
    if processes is None:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    try:
        texts = processes.all_gather_object(
            None if failure is None else f"{type(failure).__name__}: {failure}"
        )
    finally:
        if failure is not None:
            raise failure
    for failed_rank, text in enumerate(texts):
        if text is not None:
            raise RankError(
                f"{task} has failed on rank {failed_rank}, so it fails here too: {text}"
            )


def processes_of(framework: str) -> Processes | None:
    """Return the processes of a framework, or None if there is a single one."""
    processes = _processes_module(framework)
    return processes if processes.world_size() > 1 else None


def _current_processes() -> Processes | None:
    """Return the processes of the framework that has several, or None."""
    # A framework that was never imported has joined no processes.
    imported = [name for name, library in _LIBRARIES.items() if library in sys.modules]
    return next(filter(None, map(processes_of, imported)), None)


def _processes_module(framework: str) -> Processes:
    if framework not in _LIBRARIES:
        raise ValueError(f"The framework must be 'torch' or 'tf', but got {framework!r}.")
    processes: Processes = import_module(f"fastnet.backend.{framework}.processes")
    return processes


class TensorOps(NamedTuple):
    """The functions that combine the tensors of a framework.

    Attributes:
        is_tensor: Whether a value is a tensor.
        is_number: Whether a tensor is a real scalar.
        concatenate: Concatenates tensors along the first axis.
        mean_like: Converts a mean to the dtype of a given tensor, or to float64 for integers.
        errors: The exceptions that `concatenate`, or numpy's, raises for incompatible shapes.
    """

    is_tensor: Callable[[Any], bool]
    is_number: Callable[[Any], bool]
    concatenate: Callable[[list[Any]], Any]
    mean_like: Callable[[float, Any], Any]
    errors: tuple[type[Exception], ...]


def _combine_results(
    results: Sequence[Mapping[str, Any]], samples: Sequence[int | None], tensor_ops: TensorOps
) -> dict[str, Any]:
    """Combine the results of several processes.

    Tensors and arrays are concatenated along the first axis. Numbers become their mean, weighted by
    `samples`, or where that is None by the length of the first axes. Other values are taken from
    the first process.

    Raises:
        ValueError: If the processes have different keys, or different numbers of values under one.
    """
    first = results[0]
    for rank, result in enumerate(results):
        if result.keys() != first.keys():
            raise ValueError(
                f"Results are gathered under the keys {sorted(map(str, first))} on rank 0, but "
                f"{sorted(map(str, result))} on rank {rank}. Gather the same keys on each."
            )
    weights = _weights(results, samples, tensor_ops)
    return combine(
        results, lambda key, leaves: _combine(key, leaves, weights, tensor_ops), "ranks", "the data"
    )


def combine(
    results: Sequence[Mapping[str, Any]],
    combine_leaves: Callable[[str, tuple[Any, ...]], Any],
    result_owner: str,
    data_name: str,
) -> dict[str, Any]:
    """Combine the leaves of results with the same keys by ``combine_leaves(key, leaves)``.

    `result_owner` and `data_name` name the owners of results and their data in errors.

    Raises:
        ValueError: If a value has more leaves in one result than in another.
    """
    combined = {}
    for key, value in results[0].items():
        leaves = [leaves_of(result[key]) for result in results]
        counts = [len(parts) for parts in leaves]
        if len(set(counts)) > 1:
            raise ValueError(
                f"The value of '{key}' holds different numbers of values on the {result_owner}, "
                f"{counts}, so that they cannot be combined. Let ops return the same structure "
                f"for each part of {data_name}."
            )
        values = iter([combine_leaves(key, parts) for parts in zip(*leaves, strict=True)])
        combined[key] = map_leaves(value, lambda _, values=values: next(values))  # type: ignore[misc]
    return combined


def _weights(
    results: Sequence[Mapping[str, Any]], samples: Sequence[int | None], tensor_ops: TensorOps
) -> list[int]:
    """Return the number of samples of each process, or equal weights where it is unknown."""
    equal_weights = [1] * len(results)
    sizes = []
    for result, given_size in zip(results, samples, strict=True):
        leaves = leaves_of(dict(result))
        lengths = {int(leaf.shape[0]) for leaf in leaves if _has_rows(leaf, tensor_ops)}
        if given_size is None and len(lengths) != 1:
            return equal_weights
        sizes.append(lengths.pop() if given_size is None else given_size)
    return sizes if any(sizes) and len(set(sizes)) > 1 else equal_weights


def _has_rows(value: Any, tensor_ops: TensorOps) -> bool:
    return (isinstance(value, np.ndarray) or tensor_ops.is_tensor(value)) and len(value.shape) > 0


def _combine(key: str, parts: Sequence[Any], weights: Sequence[int], tensor_ops: TensorOps) -> Any:
    first = parts[0]
    tensors = tensor_ops.is_tensor(first)
    if any(tensor_ops.is_tensor(part) is not tensors for part in parts):
        names = [type(part).__name__ for part in parts]
        raise ValueError(
            f"The value of '{key}' is of different types on the ranks, {names}, so that they "
            "cannot be combined. Let it be a tensor on each, or on none."
        )
    if all(_has_rows(part, tensor_ops) for part in parts):
        return _concatenated(key, parts, tensor_ops)
    if not all(_is_number(part, tensor_ops) for part in parts):
        return first
    numbers = [(float(part), weight) for part, weight in zip(parts, weights, strict=True)]
    known = [(number, weight) for number, weight in numbers if not math.isnan(number)]
    total = sum(weight for _, weight in known)
    mean = sum(number * weight for number, weight in known) / total if total else math.nan
    return tensor_ops.mean_like(mean, first) if tensors else mean


def _is_number(value: Any, tensor_ops: TensorOps) -> bool:
    if tensor_ops.is_tensor(value):
        return tensor_ops.is_number(value)
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float, np.number)) and not isinstance(
        value, (bool, np.complexfloating)
    )


def _concatenated(key: str, parts: Sequence[Any], tensor_ops: TensorOps) -> Any:
    concatenate = tensor_ops.concatenate if tensor_ops.is_tensor(parts[0]) else np.concatenate
    try:
        return concatenate(list(parts))
    except tensor_ops.errors as error:
        shapes = [tuple(part.shape) for part in parts]
        raise ValueError(
            f"The value of '{key}' has the shapes {shapes} on the ranks, which cannot be "
            "concatenated along the first axis. Gather a result without it, or let the other axes "
            "have equal lengths."
        ) from error
