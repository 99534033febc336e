"""`fastnet.profile`: measures a network in a block, or on some batches."""

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
from fastnet.network.step import WAIT
from fastnet.network.trace_records import TraceRecord
from fastnet.profiling.beside import Communication, ModuleTimes, add_rows
from fastnet.profiling.device_events import device_events_for
from fastnet.profiling.preserve import preserved
from fastnet.profiling.recording import Recorder
from fastnet.profiling.result import Profile
from fastnet.types import Mode

__all__ = ["Profiling", "profile"]

_STEPS = 100
_SKIP = 5


class Profiling:
    """A block in which a network is profiled: `with fastnet.profile(network) as profile:`."""

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
        """Return the profile, which has its rows after the block."""
        try:
            return self._begin()
        except BaseException:
            self._stop_measuring()
            raise

    def __exit__(self, *exc: object) -> None:
        """Fill the profile with what was measured."""
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
    modules: bool = ...,
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
    update: bool = False,
    modules: bool = False,
) -> Profiling | Profile:
    """Measure where the time of a network's steps goes.

    Without batches this is a context manager that measures whatever the network does in its block;
    of the other arguments only `skip` and `nvtx` apply. With batches it enters the network, runs
    them, and returns the profile; models, optimizers and random number generators are restored
    afterwards, unless `update` is True.

    Args:
        network: The network.
        batches: A batch (a dict), which is run repeatedly, or an iterable of batches. None for a
            context manager. For an iterable other than a list or tuple, such as a data loader, the
            time that each batch is waited for is measured too, in the row "wait for data".
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none.
        steps: The number of steps to measure; batches are repeated where there are fewer. None for
            each batch once, or for 100 steps of a single batch.
        skip: The number of steps to run before any is measured, as the first ones are slow. None
            for 5, and in a block for 0.
        eager: Whether to run eagerly even where a graph, or a compiled program, could be used.
        desired_output_keys: The keys to return. None or empty for all that ops write.
        nvtx: Whether to name ops in NVTX (torch on CUDA only). In the profilers of torch and
            TensorFlow they always are.
        update: Whether to keep what the steps change. If False, afterwards everything is restored:
            weights, gradients and buffers of models, optimizers, merged gradients, and the random
            number generators of Python, numpy and the framework. Not restored are state that your
            own ops keep elsewhere, and TensorFlow's random ops without a generator.
        modules: Whether to measure the direct children of each torch model, in rows of kind
            "module", when steps run eagerly.

    Returns:
        The profile, or the context manager. In torch processes that train together it has rows of
        kind "communication" for the collectives of a step, from torch's profiler in up to three
        skipped steps. Most communication overlaps the backward pass and is not a part of the step.

    Raises:
        TypeError: If `network` is not a network, `batches` are neither a dict nor iterable, or a
            number is not an int.
        ValueError: If the network is being profiled already, there are too few batches, a number is
            out of range, `nvtx` is used without CUDA or `modules` without torch, an argument
            applies only to batches, or a model that is to be restored has no weights yet.
        Exception: Any error of entering the network or running a step.

    >>> import torch
    >>> import fastnet
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = fastnet.TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> made = profile(network, {"x": torch.ones(2)}, mode="infer", steps=20)
    >>> [row.name for row in made.rows if row.kind == "op"]
    ['LambdaOp(x) -> y']
    """
    if batches is None:
        _refuse_for_block(
            mode=mode != "train",
            epoch=epoch != 1,
            ds_id=ds_id != "",
            steps=steps is not None,
            eager=eager is not False,
            desired_output_keys=bool(desired_output_keys),
            update=update,
            modules=modules,
        )
        _check_counts(skip=(skip, 0))
        return Profiling(network, skip or 0, nvtx)
    _check_counts(steps=(steps, 1), skip=(skip, 0))
    if skip is None:
        skip = _SKIP
    count = 0
    run = Profiling(network, skip, nvtx)
    if modules and network.target_type != "torch":
        raise ValueError("modules=True measures models of torch.")
    communication = Communication(network, skip)
    module_times = ModuleTimes(network)
    # A list or tuple is in memory already.
    waits = not isinstance(batches, (Mapping, Sequence))
    with (
        run as made,
        network(mode, epoch, ds_id, desired_output_keys, eager=eager),
        nullcontext() if update else preserved(network),
        module_times.active() if modules else nullcontext(),
    ):
        drawn = _choose_batches(batches, steps, skip)
        meter = network._meter
        if waits and meter is not None:
            drawn = _time_waits(drawn, skip, partial(meter.record, mode, WAIT))
        for batch in drawn:
            if count == skip:
                module_times.start()
            communication.run(count, network, batch)
            count += 1
    if not made.sections:
        raise ValueError(
            f"No step was measured: there are {count} batches, and the first {skip} steps are "
            "skipped. Give more batches, say how many steps to measure, or skip fewer."
        )
    made.about["update"] = update
    if len(made.sections) == 1:
        section = add_rows(made.sections[0], "module", module_times.times())
        made.sections = (add_rows(section, "communication", communication.times()),)
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


def _time_waits(
    batches: Iterator[Mapping[str, Any]], skip: int, waited: Callable[[float], None]
) -> Iterator[Mapping[str, Any]]:
    """Iterate over batches, and record the wait for each, except the skipped ones."""
    for count in itertools.count():
        started = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        if count >= skip:
            waited(perf_counter() - started)
        yield batch


def _choose_batches(batches: Any, steps: int | None, skip: int) -> Iterator[Mapping[str, Any]]:
    """Return the batches of the steps to skip, and of those to measure."""
    if isinstance(batches, Mapping):
        return islice(_repeat([batches]), skip + (_STEPS if steps is None else steps))
    if not isinstance(batches, Iterable) or isinstance(batches, str):
        raise TypeError(
            "Batches to profile are a dict or an iterable of dicts, but these are of type "
            f"{type(batches).__name__}."
        )
    if steps is None:
        return iter(batches)
    return islice(_repeat(batches), skip + steps)


def _repeat(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Iterate over batches without end."""
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
