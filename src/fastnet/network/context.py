"""Contexts of open networks.

`open_context` validates the arguments of `network(mode="train", epoch=1)`, finds or builds the
execution plan and makes the runner. `start_context` enters it; `NetworkContext.close` leaves it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from fastnet._execute import BoundPlan
from fastnet.backend.model_metadata import choose_optimizer
from fastnet.backend.ranges import OpRanges
from fastnet.distributed import is_main
from fastnet.errors import nearest_name, shorten
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.step import Meter, StepMeter, postprocessed, sliced, waiting
from fastnet.network.update_warnings import (
    warn_of_missing_updates,
    warn_of_partial_optimizers,
    warn_of_updates_in,
)
from fastnet.network.validation import warn_of_misspelled
from fastnet.types import RunStep, State
from fastnet.util.names import MODES
from fastnet.util.warnings import warn


@dataclass(eq=False, slots=True)
class NetworkContext:
    """One use of a network, from `network(mode, epoch)` until the network is left."""

    plan: ExecutionPlan
    state: State
    # Runs a step; raises until the network is entered.
    run: RunStep
    # Whether this is a `transform` of a single batch, which runs eagerly unless a trace fits.
    transforms: bool = False
    runner: Runner = field(init=False)
    # The bound plan if `run` is nothing but its step.
    bound: BoundPlan | None = None
    # Called when the network is left without an error.
    on_exit: Sequence[Callable[[], None]] = ()

    def close(self, error: BaseException | None) -> None:
        """Leave the network: run what is due at the end, then release the devices."""
        try:
            # A generator that opened the network and is closed has not failed.
            if error is None or isinstance(error, GeneratorExit):
                for call in self.on_exit:
                    call()
        finally:
            self.runner.close()


def open_context(
    network: Any, mode: Any, epoch: Any, ds_id: Any, desired_keys: Any, warmup: bool, eager: bool
) -> NetworkContext:
    """Validate the arguments, find or build the execution plan, and make the runner."""
    epoch, desired = check_request(mode, epoch, ds_id, desired_keys, network._first_epoch)
    plans, started = network._plans, perf_counter()
    built = plans.built
    plan: ExecutionPlan = plans.find(mode, epoch, ds_id, desired or network._wanted)
    if plans.built > built and not desired <= plan.kernel.resolution.outputs.names():
        warn_of_misspelled(desired, network.ops + network.postprocessing)
    if not plan.is_checked:
        plan.is_checked = True
        if mode == "train":
            warn_of_missing_updates(network, plan)
        else:
            warn_of_updates_in(mode, network, plan)
    if network._meter is not None:
        name = "resolve (computed)" if plans.built > built else "resolve (cached)"
        network._meter.record(mode, name, perf_counter() - started)
    state: State = {
        "warmup": warmup,
        "mode": mode,
        "req_grad": plan.takes_gradients,
        "epoch": epoch,
        "deferred": {},
        "eager": eager,
    }

    def raise_not_open(batch: Mapping[str, Any]) -> dict[str, Any]:
        raise network._not_open()

    context = NetworkContext(plan, state, raise_not_open)
    context.runner = network._make_runner(context)
    return context


def start_context(network: Any, context: NetworkContext) -> None:
    """Choose the optimizers, prepare the models, and compose the function that runs a step."""
    started = perf_counter()
    for model in context.plan.models:
        choose_optimizer(model, context.state["epoch"])
    if context.plan.takes_gradients and context.state["mode"] == "train":
        warn_of_partial_optimizers(context.plan)
    runner = context.runner
    runner.open()
    if not context.state["warmup"]:
        context.on_exit = context.plan.on_exit
    runner.bound = runner.bind()
    with network._mutex:
        compose_step(network, context)
    if network._meter is not None:
        network._meter.record(context.state["mode"], "open", perf_counter() - started)


def compose_step(network: Any, context: NetworkContext) -> None:
    """Set what runs the steps of a context, and times them if the network is profiled."""
    runner, meter = context.runner, _step_meter(network, context)
    run = _wrap_step(runner, network.target_type, None)
    bound = runner.bound if meter is None and run == runner.bound.step else None
    if meter is not None:
        run = meter.measured(_wrap_step(runner, network.target_type, meter), run)
    # A step may be running in another thread.
    context.bound = bound
    context.run = run


def _wrap_step(runner: Runner, target_type: str, meter: StepMeter | None) -> RunStep:
    """Add slicing, waiting for the device and postprocessing to the runner's step."""
    plan = runner.context.plan
    run, wait = runner.step(meter), runner.synchronizer()
    if plan.slicers:
        run = sliced(run, plan.slicers, wait, meter)
    elif wait is not None:
        run = waiting(run, wait, meter)
    if plan.postprocessing:
        state = runner.context.state
        run = postprocessed(
            runner.merge_replicas(run), plan.postprocessing, state, target_type, meter
        )
    return runner.merge_replicas(run)


def _step_meter(network: Any, context: NetworkContext) -> StepMeter | None:
    meter: Meter | None = network._meter
    if meter is None and not context.runner.is_profiled():
        return None
    ranges = context.runner.ranges()
    if meter is not None:
        return meter.open_step(context.plan, context.state, ranges)
    return None if ranges is None else StepMeter(ranges.before, ranges.after)


def check_request(
    mode: Any, epoch: Any, ds_id: Any, desired_output_keys: Any, first_epoch: int = 1
) -> tuple[int, frozenset[str]]:
    """Validate the arguments that a network is entered with; return the epoch and desired keys."""
    if not isinstance(mode, str) or mode not in MODES:
        if isinstance(mode, str):
            near = nearest_name(mode, MODES)
            advice = f" Did you mean {near!r}?" if near else ""
        else:
            advice = ' Run a batch by `network.transform(batch, "train")`, or by `run_step(batch)`.'
        raise ValueError(
            f"A network runs in one of the modes {list(MODES)}, not in {shorten(mode)}.{advice}"
        )
    number = _as_int(epoch)
    if number is None or number < first_epoch:
        raise (TypeError if number is None else ValueError)(
            f"An epoch is an integer of at least {first_epoch}, not {shorten(epoch)} of type "
            f"{type(epoch).__name__}."
        )
    if ds_id is not None and not isinstance(ds_id, str):
        raise TypeError(
            'ds_id is a string, "" for data without an id, or None to run the ops of every id, not '
            f"{shorten(ds_id)} of type {type(ds_id).__name__}."
        )
    keys = () if desired_output_keys is None else desired_output_keys
    is_one = isinstance(keys, str) or not isinstance(keys, Iterable)
    desired = frozenset([keys] if is_one else keys)
    for key in desired:
        if not isinstance(key, str):
            raise TypeError(
                f"desired_output_keys holds {shorten(key)} of type {type(key).__name__}, but keys "
                "are strings."
            )
    return number, desired


def _as_int(value: Any) -> int | None:
    """Return an integer of any type, such as a 0-d tensor, as an int, and None for other values."""
    if isinstance(value, (bool, np.bool_)):  # numpy 1 accepts its bools as indices.
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def iter_results(
    network: Any, data: Any, request: tuple[Any, ...], progress: bool, device: Any
) -> Iterator[Any]:
    """Open a network and yield the results of batches; see `BaseNetwork.iter_transform`."""
    mode, epoch, ds_id, _ = request
    opened = nullcontext(data)
    with network._on_device(device), network(*request):
        try:
            if callable(data) and not hasattr(data, "__iter__"):
                opened = data(mode=mode, epoch=epoch, ds_id=ds_id, shuffle=False)
            with opened as loader:
                begin_loader(network, loader)
                batches: Any = loader
                if progress and hasattr(loader, "__len__") and is_main():
                    from tqdm import tqdm

                    batches = tqdm(loader, unit="batch", desc="transform")
                count = 0
                for batch in batches:
                    yield network._do_transform(network._to_batch(batch))
                    count += 1
                end_loader(loader, count)
        except GeneratorExit:
            # A loop that was left early cannot be distinguished from one that failed.
            network._skip_exit_calls()
            raise


def begin_loader(network: Any, loader: Any) -> None:
    """Prepare a loader for an epoch.

    The runner checks it, its samplers get the epoch, and `on_epoch_begin` of a Keras dataset is
    called.
    """
    context: Any = network._context
    context.runner.check_loader(loader)
    inner = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), inner, getattr(inner, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(context.state["epoch"])
    _notify_keras_dataset(loader, "on_epoch_begin")


def end_loader(loader: Any, count: int) -> None:
    """Call `on_epoch_end` of a Keras dataset; warn if a loader is an iterator without batches."""
    _notify_keras_dataset(loader, "on_epoch_end")
    if not count and hasattr(loader, "__next__"):
        warn(
            f"The epoch had no step, because the loader, {type(loader).__name__}, is exhausted: "
            "an iterator gives its batches once. Make a new one for each epoch, or pass an "
            "object that can be iterated again, such as a list, a DataLoader or a tf.data.Dataset."
        )


def _notify_keras_dataset(loader: Any, name: str) -> None:
    """Call a method of a `keras.utils.PyDataset`, which is named Sequence in Keras 2."""
    for base in type(loader).__mro__:
        is_keras = base.__module__.partition(".")[0] in ("keras", "tf_keras")
        # A Sequence has no `on_epoch_begin`.
        if is_keras and base.__name__ in ("PyDataset", "Sequence") and hasattr(base, name):
            getattr(loader, name)()
            return


class Runner:
    """Runs the steps of one context eagerly; the frameworks' runners derive from it.

    Slicing, waiting for the device and postprocessing are added around it: see `step.py`.
    """

    # The plan bound to the state, set when the network is entered.
    bound: BoundPlan
    # The kind and the name of the profile row of a context manager, such as autocast.
    context_row: tuple[str, str] | None = None

    def __init__(self, context: NetworkContext) -> None:
        self.context = context

    def open(self) -> None:
        """Prepare the active models."""

    def close(self) -> None:
        """Undo `open`, even if it failed halfway."""

    def check_loader(self, loader: Any) -> None:
        """Raise an error for a loader that cannot be run."""

    def bind(self) -> BoundPlan:
        """Bind the plan to the state that ops are given."""
        return BoundPlan(self.context.plan.kernel, self.context.state)

    def is_profiled(self) -> bool:
        """Return whether the framework's profiler is on."""
        return False

    def ranges(self) -> OpRanges | None:
        """Return what names the ops to the framework's profiler, or None."""
        return None

    def synchronizer(self) -> Callable[[], None] | None:
        """Return the function that waits for queued copies, or None where there are none."""
        return None

    def merge_replicas(self, run: RunStep) -> RunStep:
        """Return a step whose results are merged over all replicas."""
        return run

    def step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, timed by `meter` if there is one."""
        return self.step_by(meter, self.bound)

    def step_by(self, meter: StepMeter | None, bound: BoundPlan) -> RunStep:
        """Return the function that runs a minibatch by a bound plan, timed by `meter`."""
        if meter is None:
            return bound.step
        first, log = meter.plan_rows(bound.plan), meter.log
        context_row = -1 if self.context_row is None else meter.row(*self.context_row)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            return bound.step_timed(batch, log, first, meter.before, meter.after, context_row)

        return run
