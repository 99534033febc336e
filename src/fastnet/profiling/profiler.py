"""`fastnet.profile`: measures a network in a block, or on some batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, overload

import numpy as np

from fastnet.backend.dispatch import get_framework
from fastnet.backend.model_metadata import get_metadata, note_optimizer, set_metadata
from fastnet.errors import advise_on_batch, shorten
from fastnet.network import BaseNetwork
from fastnet.network.measuring import (
    compiles_steps,
    measured_by,
    skip_exit_calls,
    traces_of,
)
from fastnet.network.run_state import find_stateful, restored_afterwards
from fastnet.network.step import DATA_WAIT_TITLE
from fastnet.op.checks import is_int
from fastnet.profiling.collectives import CollectiveTimer
from fastnet.profiling.device_events import device_events_for
from fastnet.profiling.module_times import ModuleTimes
from fastnet.profiling.recording import Recorder
from fastnet.profiling.result import Profile, fill
from fastnet.profiling.rows import Row, Section
from fastnet.types import Mode

_STEPS = 100
_SKIP = 5


@contextmanager
def _measure(network: BaseNetwork, skip: int) -> Iterator[Profile]:
    """Measure a network in a block; the profile has its rows afterwards."""
    recorder = Recorder(skip, device_events_for(network), partial(traces_of, network))
    profile_result = Profile()
    with _recorded(network, recorder, profile_result):
        yield profile_result


@contextmanager
def _recorded(network: BaseNetwork, recorder: Recorder, profile_result: Profile) -> Iterator[None]:
    """Record a network in a block, and fill a profile at its end."""
    try:
        with measured_by(network, recorder):
            yield
    finally:
        fill(profile_result, network, recorder)


@overload
def profile(network: BaseNetwork, *, skip: int | None = ...) -> AbstractContextManager[Profile]: ...


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
    update: bool = False,
    modules: bool = False,
) -> AbstractContextManager[Profile] | Profile:
    """Measure where the time of a network's steps goes.

    Without batches this is a context manager that measures whatever the network does in its block;
    of the other arguments only `skip` applies. With batches it enters the network, runs
    them, and returns the profile; models, optimizers and random number generators are restored
    afterwards, unless `update` is True.

    Args:
        network: The network.
        batches: A batch (a dict), which is run repeatedly, or an iterable of batches. None for a
            context manager. For an iterable other than a list or tuple, such as a data loader, the
            wait for each batch is measured too, in the row "wait for data".
        mode: "train", "eval", "test" or "infer".
        epoch: The epoch, counted from 1.
        ds_id: The id of the dataset, "" if it has none.
        steps: The number of steps to measure; batches are repeated if there are fewer. None for
            each batch once, or for 100 steps of a single batch.
        skip: The number of steps to run before any is measured, as the first ones are slow. None
            for 5, and in a block for 0.
        eager: Whether to run eagerly even where a graph, or a compiled program, could be used.
        desired_output_keys: The keys to return. None or empty for all that ops write.
        update: Whether to keep the changes that the steps make. If False, these are restored:
            weights, gradients and buffers of models, optimizers, ops with a `state_dict`, and the
            random number generators of Python, numpy and the framework. State that your own ops
            keep elsewhere, and TensorFlow's random ops without a generator, are not restored.
        modules: Whether to measure the direct children of each torch model, in rows of kind
            "module". A network that compiles its steps needs `eager` as well.

    Returns:
        The profile, or the context manager. In distributed training with torch, it has rows of kind
        "communication" for the collectives of a step, from torch's profiler in up to three skipped
        steps. Most communication overlaps the backward pass, so it is not part of the step.

    Raises:
        TypeError: If `network` is not a network, or `batches` are neither a dict nor an iterable of
            dicts.
        ValueError: If the network is being profiled already, there are too few batches, a number is
            no int or out of range, `modules` is used without torch or for compiled steps, an
            argument applies only to batches, or a model that is to be restored has no weights yet.
        Exception: Any error of entering the network or running a step.

    >>> import torch
    >>> import fastnet
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = fastnet.TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> result = profile(network, {"x": torch.ones(2)}, mode="infer", steps=20)
    >>> [row.name for row in result.rows if row.kind == "op"]
    ['LambdaOp(x) -> y']
    """
    if not isinstance(network, BaseNetwork):
        raise TypeError(
            f"fastnet.profile measures a network, but got {shorten(network)} of type "
            f"{type(network).__name__}."
        )
    for name, value, minimum in (("steps", steps, 1), ("skip", skip, 0)):
        if value is not None and not (is_int(value) and value >= minimum):
            raise ValueError(f"{name} must be an int of at least {minimum}, not {value!r}.")
    if batches is None:
        settings = (mode, epoch, ds_id, steps, eager, bool(desired_output_keys), update, modules)
        if settings != ("train", 1, "", None, False, False, False, False):
            raise ValueError(
                "Without batches fastnet.profile measures a block, in which the caller enters the "
                "network and runs the steps: only `skip` applies. Pass batches, or leave the other "
                "arguments out."
            )
        return _measure(network, skip or 0)
    if modules and network.target_type != "torch":
        raise ValueError("modules=True measures the modules of torch models. Leave it out.")
    # A compiled step calls no modules; hooks on them would only compile it again.
    if modules and not eager and compiles_steps(network):
        raise ValueError(
            "A compiled step is one program, which calls no modules. Pass eager=True to measure "
            "them, or leave modules=True out."
        )
    skip = _SKIP if skip is None else skip
    collectives = CollectiveTimer(network, skip)
    module_times = ModuleTimes(network)
    # A list or tuple is in memory already.
    has_waits = not isinstance(batches, (Mapping, Sequence))
    recorder = Recorder(skip, device_events_for(network), partial(traces_of, network))
    profile_result = Profile()
    count = 0
    with (
        _recorded(network, recorder, profile_result),
        nullcontext() if update else _optimizers_preserved(network),
        network(mode, epoch, ds_id, desired_output_keys, eager=eager),
        nullcontext() if update else _preserved(network),
        module_times.active() if modules else nullcontext(),
    ):
        chosen = _choose_batches(batches, steps, skip)
        if has_waits:
            chosen = _time_waits(chosen, skip, partial(recorder.record, mode, DATA_WAIT_TITLE))
        for batch in chosen:
            with module_times.step():
                collectives.run_step(count, network, batch)
            count += 1
    if not profile_result.sections:
        raise ValueError(
            f"No step was measured: there are {count} batches, and the first {skip} steps are "
            "skipped. Pass more batches, set steps, or set a smaller skip."
        )
    profile_result.about["update"] = update
    if len(profile_result.sections) == 1:
        section = _add_rows(profile_result.sections[0], "module", module_times.steps[skip:])
        profile_result.sections = (_add_rows(section, "communication", collectives.steps),)
    return profile_result


def _add_rows(
    section: Section, kind: str, steps: Sequence[Mapping[str, Sequence[float]]]
) -> Section:
    """Return a section with a row for each name in `steps`, which is not a part of the step.

    `steps` has the seconds of each call in each step, by name.
    """
    rows = []
    names = dict.fromkeys(name for step in steps for name in step)
    for index, name in enumerate(names):
        calls_of_steps = [step.get(name, ()) for step in steps]
        row = Row.of(
            np.array([sum(calls) for calls in calls_of_steps]),
            name=name,
            kind=kind,
            index=index,
            section=section.name,
            count=sum(len(calls) for calls in calls_of_steps),
            in_step=False,
        )
        rows.append(row)
    return replace(section, rows=(*section.rows, *rows))


def _time_waits(
    batches: Iterator[Mapping[str, Any]], skip: int, record_wait: Callable[[float], None]
) -> Iterator[Mapping[str, Any]]:
    """Iterate over batches, and record the wait for each, except the skipped ones."""
    for count in itertools.count():
        started = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        if count >= skip:
            record_wait(perf_counter() - started)
        yield batch


def _choose_batches(batches: Any, steps: int | None, skip: int) -> Iterator[Mapping[str, Any]]:
    """Return the batches of the steps to skip, and of those to measure."""
    if isinstance(batches, Mapping):
        return islice(_repeat([batches]), skip + (_STEPS if steps is None else steps))
    # A tensor is an iterable of its rows.
    is_iterable = isinstance(batches, Iterable) and not hasattr(batches, "shape")
    if not is_iterable or isinstance(batches, str):
        raise TypeError(
            "Batches to profile are a dict or an iterable of dicts, but these are of type "
            f"{type(batches).__name__}.{advise_on_batch(batches)}"
        )
    if steps is None:
        return iter(batches)
    return islice(_repeat(batches), skip + steps)


def _repeat(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Iterate over batches without end."""
    count = 0
    while True:
        count_before = count
        for batch in batches:
            count += 1
            yield batch
        if count == count_before:
            raise ValueError(
                f"The batches end after {count}, and cannot be iterated over again. "
                "Measure fewer steps, or pass a list."
            )


@contextmanager
def _optimizers_preserved(network: BaseNetwork) -> Iterator[None]:
    """Restore the current optimizers of models, which entering another epoch may change."""
    before = [(model, get_metadata(model, "current_optimizer")) for model in network.models]
    try:
        yield
    finally:
        for model, optimizer in before:
            set_metadata(model, "current_optimizer", optimizer)
            note_optimizer(model)


@contextmanager
def _preserved(network: BaseNetwork) -> Iterator[None]:
    """Restore models, optimizers, states of ops and random numbers after a block."""
    get_framework(network.target_type).require_variables(network.models)
    with restored_afterwards(network, find_stateful(network, {})):
        try:
            yield
        finally:
            skip_exit_calls(network)
