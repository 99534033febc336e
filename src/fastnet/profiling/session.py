"""`fastnet.profile`: measure what a network does in a block, or over some batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from itertools import islice
from time import perf_counter
from typing import Any, overload

from fastnet.errors import shorten
from fastnet.network import BaseNetwork
from fastnet.network.metering import WAIT
from fastnet.network.trace_records import TraceRecord
from fastnet.profiling.communication import Communication
from fastnet.profiling.device_events import device_events_for
from fastnet.profiling.recording import Recorder
from fastnet.profiling.result import Profile
from fastnet.profiling.unchanged import unchanged
from fastnet.types import Mode

__all__ = ["Profiling", "profile"]

_STEPS = 100
_SKIP = 5


class Profiling:
    """A block in which a network is profiled: `with fastnet.profile(network) as profile:`.

    Args:
        network: The network.
        skip: How many of its steps to let pass first.
        nvtx: Whether to name ops to NVTX.

    Raises:
        TypeError: If it is no network.
        ValueError: If NVTX is asked for and ops do not run on CUDA in torch.
    """

    def __init__(self, network: BaseNetwork, skip: int = 0, nvtx: bool = False) -> None:
        if not isinstance(network, BaseNetwork):
            raise TypeError(
                f"fastnet.profile measures a network, but got {shorten(network)} of type "
                f"{type(network).__name__}."
            )
        if nvtx and device_events_for(network) is None:
            raise ValueError(
                "nvtx=True needs a network that runs in torch on CUDA, but this "
                f"{type(network).__name__} runs on {network.device or 'no device of torch'}."
            )
        self._network = network
        self._skip = skip
        self._nvtx = nvtx
        self._recorder: Recorder | None = None
        self._profile = Profile()

    def __enter__(self) -> Profile:
        """Begin to profile.

        Returns:
            The profile, which has its rows when the block is left.

        Raises:
            ValueError: If the network is being profiled already, or this profile was made.
        """
        try:
            return self._begin()
        except BaseException:
            self._stop_measuring()
            raise

    def __exit__(self, *exc: object) -> None:
        """End the profile, and sum up what was measured."""
        try:
            self._end()
        finally:
            self._stop_measuring()

    def _stop_measuring(self) -> None:
        # Another profile of the network may be running.
        if self._recorder is not None and self._network._meter is self._recorder:
            self._network._meter = None

    def _begin(self) -> Profile:
        if self._network._meter is not None:
            raise ValueError(
                f"This {type(self._network).__name__} is being profiled already. Leave that "
                "profile's block first; one profile measures all modes and epochs."
            )
        if self._recorder is not None:
            raise ValueError(
                "This profile has been made. Call fastnet.profile again for another one."
            )
        nvtx = import_module("fastnet.backend.torch.ranges").NvtxRanges if self._nvtx else None
        self._recorder = Recorder(self._skip, device_events_for(self._network), nvtx, self._traces)
        self._network._measure_with(self._recorder)
        return self._profile

    def _traces(self) -> Sequence[TraceRecord]:
        # not every framework traces
        found: Sequence[TraceRecord] = getattr(self._network, "traces", ())
        return found

    def _end(self) -> None:
        self._network._measure_with(None)
        assert self._recorder is not None
        self._profile.fill(self._network, self._recorder)


@overload
def profile(network: BaseNetwork, *, skip: int | None = ..., nvtx: bool = ...) -> Profiling: ...


@overload
def profile(
    network: BaseNetwork,
    batches: Any,
    *,
    mode: Mode = ...,
    epoch: int = ...,
    ds_id: str = ...,
    steps: int | None = ...,
    skip: int | None = ...,
    eager: bool = ...,
    desired_output_keys: Collection[str] | None = ...,
    nvtx: bool = ...,
    update: bool = ...,
) -> Profile: ...


def profile(
    network: BaseNetwork,
    batches: Any = None,
    *,
    mode: Mode = "train",
    epoch: int = 1,
    ds_id: str = "",
    steps: int | None = None,
    skip: int | None = None,
    eager: bool = False,
    desired_output_keys: Collection[str] | None = None,
    nvtx: bool = False,
    update: bool = True,
) -> Profiling | Profile:
    """Measure where the time of a network's steps goes; in mode "train" this trains its models.

    Without batches this is a context manager: what the network does in its block is measured, and
    of the other arguments only `skip` and `nvtx` have a meaning. With batches it opens the network,
    runs them and gives the profile. The steps are real ones: with `UpdateOp` in force they change
    weights and optimizers, those that are skipped too, unless `update` is False.

    Args:
        network: The network.
        batches: A batch (a dict), which is run again and again, or an iterable of batches. None
            for a context manager. How long the batch of each measured step is waited for is told
            beside the steps, as "wait for data", unless it is from a list or tuple: of a loader
            with workers that is what they have not done while a step ran.
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none.
        steps: How many steps to measure; batches are gone through again where there are fewer.
            None for each batch once, or for 100 steps of a single batch.
        skip: How many steps to run before any is measured: the first ones of a process are slow.
            None for 5, and in a block for 0. What tracing and compiling took in them is told beside
            the steps.
        eager: Whether to run op by op even where a graph, or a compiled program, could be used.
        desired_output_keys: The keys wanted back. None or empty for all that ops write.
        nvtx: Whether to name ops to NVTX too (torch on CUDA only). While `torch.profiler` or
            TensorFlow's profiler is on, ops have their names there without being asked.
        update: Whether what the steps change stays. If False, they run as they do, and after them
            everything is put back: weights, gradients and buffers of models (running averages among
            them), state and settings of optimizers, what `merge_grad` has added up, and the random
            numbers of Python, numpy and the framework. What ops and models of your own keep
            elsewhere stays changed, and where TensorFlow draws without a generator, as the dropout
            of Keras 2 does, the next steps draw other numbers.

    Returns:
        The profile, or the context manager that gives it. In processes that train together in torch
        it has rows of the kind "communication": what the collectives of a step take, from when they
        begin until they are done, by torch's profiler in up to three of the steps that are skipped.
        Most of that goes on beside the backward pass, so that it is not a part of the step.

    Raises:
        TypeError: If the first argument is no network, batches are neither a dict nor iterable, or
            a number is none.
        ValueError: If the network is being profiled already, there are too few batches, a number is
            out of range, NVTX is asked for where there is no CUDA, something is asked for without
            batches that only they can have, or `update` is False while a model has no weights yet.
        Exception: Whatever opening the network or a step raises.

    >>> import torch
    >>> import fastnet
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = fastnet.TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> made = profile(network, {"x": torch.ones(2)}, mode="infer", steps=20)
    >>> [row.name for row in made.rows if row.kind == "op"]
    ['LambdaOp(x) -> y']
    """
    if batches is None:
        if not update:
            raise ValueError(
                "update=False is for batches that fastnet.profile runs itself: it cannot undo what "
                "else is done in a block. Pass the batches."
            )
        _refuse_for_block(
            mode=mode != "train",
            epoch=epoch != 1,
            ds_id=ds_id != "",
            steps=steps is not None,
            eager=eager is not False,
            desired_output_keys=bool(desired_output_keys),
        )
        _check_counts(skip=(skip, 0))
        return Profiling(network, skip or 0, nvtx)
    _check_counts(steps=(steps, 1), skip=(skip, 0))
    if skip is None:
        skip = _SKIP
    count = 0
    run = Profiling(network, skip, nvtx)
    communication = Communication(network, skip)
    # what is there already is not waited for
    waits = not isinstance(batches, (Mapping, Sequence))
    with (
        run as made,
        network(mode, epoch, ds_id, desired_output_keys, eager=eager),
        nullcontext() if update else unchanged(network),
    ):
        drawn = _some(batches, steps, skip)
        meter = network._meter
        if waits and meter is not None:
            drawn = _timed(drawn, skip, partial(meter.record, mode, WAIT))
        for batch in drawn:
            communication.run(count, network, batch)
            count += 1
    if not made.sections:
        raise ValueError(
            f"No step was measured: there are {count} batches, and the first {skip} steps are "
            "skipped. Give more batches, say how many steps to measure, or skip fewer."
        )
    made.about["update"] = update
    communication.add_to(made)
    return made


def _refuse_for_block(**asked: bool) -> None:
    for name, is_asked in asked.items():
        if is_asked:
            raise ValueError(
                f"{name} is for batches that fastnet.profile runs itself: in a block the program "
                "opens the network and runs the steps. Pass the batches, or leave it out."
            )


def _check_counts(**counts: tuple[Any, int]) -> None:
    for name, (value, least) in counts.items():
        if value is None:
            continue
        if not isinstance(value, int):
            raise TypeError(
                f"{name} must be a whole number, but got {shorten(value)} of type "
                f"{type(value).__name__}."
            )
        if value < least:
            raise ValueError(f"{name} must be {least} or more, but it is {value}.")


def _timed(
    batches: Iterator[Mapping[str, Any]], skip: int, waited: Callable[[float], None]
) -> Iterator[Mapping[str, Any]]:
    """Go through batches, and tell how long each was waited for, but those to skip."""
    for count in itertools.count():
        started = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        if count >= skip:
            waited(perf_counter() - started)
        yield batch


def _some(batches: Any, steps: int | None, skip: int) -> Iterator[Mapping[str, Any]]:
    """Return the batches of the steps to skip, and of those to measure."""
    if isinstance(batches, Mapping):
        return islice(_again([batches]), skip + (_STEPS if steps is None else steps))
    if not isinstance(batches, Iterable) or isinstance(batches, str):
        raise TypeError(
            "Batches to profile are a dict or an iterable of dicts, but these are of type "
            f"{type(batches).__name__}."
        )
    if steps is None:
        return iter(batches)
    return islice(_again(batches), skip + steps)


def _again(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Go through batches again and again."""
    count = 0
    while True:
        before = count
        for batch in batches:
            count += 1
            yield batch
        if count == before:
            raise ValueError(
                f"There are no more batches after {count}, and they cannot be gone through again. "
                "Ask for fewer steps, or give a list."
            )
