"""One use of a network: what it runs, in which state, and what runs its steps.

`open_context` is the whole way from `network(mode="train", epoch=1)` to a context that can be
entered: validate the arguments, find or build the execution plan, make the framework's runner.
`start_context` is what entering it does, `NetworkContext.close` what leaving it does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from fastnet._execute import BoundPlan
from fastnet.backend.model_metadata import get_metadata, name_of, set_metadata
from fastnet.backend.ranges import OpRanges
from fastnet.errors import nearest_name, shorten, unwritten_key
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.network.metering import Around, StepMeter
from fastnet.network.step import postprocessed, sliced, waiting
from fastnet.types import Model, RunStep, State
from fastnet.util.warnings import warn

__all__ = [
    "NetworkContext",
    "Runner",
    "check_request",
    "compose_step",
    "note_new_models",
    "note_optimizers",
    "open_context",
    "start_context",
]

_MODES = ("train", "eval", "test", "infer")

# The `optimizer` and the `current_optimizer` that each model had when they were last noted.
_noted: WeakKeyDictionary[Model, tuple[Any, Any]] = WeakKeyDictionary()


class NetworkContext:
    """One use of a network, from `network(mode, epoch)` until the network is left.

    Attributes:
        plan: The execution plan.
        state: The state that ops are given.
        transforms: Whether this is a `transform` of a single batch, which may run eagerly but also
            use existing traces.
        runner: The framework's runner of steps.
        run: Runs a step.
        bound: The bound plan if `run` is nothing but its step, else None.
        on_exit: Called when the network is left without an error.
    """

    __slots__ = ("bound", "on_exit", "plan", "run", "runner", "state", "transforms")

    runner: Runner

    def __init__(self, plan: ExecutionPlan, state: State, refuse: RunStep) -> None:
        self.plan = plan
        self.state = state
        self.transforms = False
        # Replaced when the network is entered.
        self.run = refuse
        self.bound: BoundPlan | None = None
        self.on_exit: Sequence[Callable[[], None]] = ()

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
    network: Any,
    mode: Any,
    epoch: Any,
    ds_id: Any,
    desired_output_keys: Collection[str] | None,
    warmup: bool,
    eager: bool,
) -> NetworkContext:
    """Validate the arguments, find or build the execution plan, and make the runner."""
    epoch, desired = check_request(mode, epoch, ds_id, desired_output_keys, network._first_epoch)
    plan = _find_plan(network, mode, epoch, ds_id, desired or network._wanted)
    state: State = {
        "warmup": warmup,
        "mode": mode,
        "req_grad": plan.takes_gradients,
        "epoch": epoch,
        "deferred": {},
        "eager": eager,
    }

    def refuse(batch: Mapping[str, Any]) -> dict[str, Any]:
        raise network._not_open()

    context = NetworkContext(plan, state, refuse)
    context.runner = network._make_runner(context)
    return context


def _find_plan(
    network: Any, mode: str, epoch: int, ds_id: str | None, desired: frozenset[str]
) -> ExecutionPlan:
    plans, meter = network._plans, network._meter
    built, started = plans.built, perf_counter()
    plan: ExecutionPlan = plans.find(mode, epoch, ds_id, desired)
    if meter is not None:
        way = "worked out" if plans.built > built else "found"
        meter.record(mode, f"resolve ({way})", perf_counter() - started)
    return plan


def start_context(network: Any, context: NetworkContext) -> None:
    """Choose the optimizers, prepare the models, and compose the function that runs a step."""
    started = perf_counter()
    for model in context.plan.models:
        _choose_optimizer(model, context.state["epoch"])
    runner = context.runner
    runner.open()
    if not context.state["warmup"]:
        context.on_exit = context.plan.on_exit
    runner.bound = runner.bind()
    with network._composing:
        compose_step(network, context)
    if network._meter is not None:
        network._meter.record(context.state["mode"], "open", perf_counter() - started)


def compose_step(network: Any, context: NetworkContext) -> None:
    """Set what runs the steps of a context, and times them if the network is profiled."""
    runner, meter = context.runner, _step_meter(network, context)
    run = _around_step(runner, network.target_type, None)
    bound = runner.bound if meter is None and run == runner.bound.step else None
    if meter is not None:
        run = meter.measured(_around_step(runner, network.target_type, meter), run)
    if runner.ranks is not None:
        run, bound = runner.ranks.counted(run), None
    unwritten = context.plan.unwritten
    if unwritten and network._warns_of_unwritten and not network._searched.issuperset(unwritten):
        run, bound = _searching(network, context, run, bound), None
    # A step may be running in another thread.
    context.bound = bound
    context.run = run


def _around_step(runner: Runner, target_type: str, meter: StepMeter | None) -> RunStep:
    """Put slicing, waiting for the device and postprocessing around the runner's step."""
    plan = runner.context.plan
    run, wait = runner.step(meter), runner.synchronizer()
    if plan.slicers:
        run = sliced(run, runner.slicers(), wait, meter)
    elif wait is not None:
        run = waiting(run, wait, meter)
    if plan.postprocessing:
        state = runner.context.state
        run = postprocessed(
            runner.merge_replicas(run), plan.postprocessing, state, target_type, meter
        )
    return runner.merge_replicas(run)


def _step_meter(network: Any, context: NetworkContext) -> StepMeter | None:
    runner = context.runner
    if network._meter is None and not runner.is_profiled():
        return None
    ranges = runner.ranges()
    if network._meter is not None:
        step_meter: StepMeter = network._meter.open_step(context.plan, context.state, ranges)
        return step_meter
    return None if ranges is None else StepMeter(ranges.before, ranges.after)


def _searching(
    network: Any, context: NetworkContext, run: RunStep, bound: BoundPlan | None
) -> RunStep:
    """Return a first step that searches its batch for desired keys, and is then replaced."""

    def search(batch: Mapping[str, Any]) -> dict[str, Any]:
        if hasattr(batch, "keys"):
            with network._composing:
                if context.run is search:
                    context.bound, context.run = bound, run
            for key in context.plan.unwritten:
                if key not in network._searched and key not in batch:
                    warn(unwritten_key(key, {*network._plans.written(), *batch.keys()}))
                network._searched.add(key)
        return run(batch)

    return search


def check_request(
    mode: Any, epoch: Any, ds_id: Any, desired_output_keys: Any, first_epoch: int = 1
) -> tuple[int, frozenset[str]]:
    """Validate what a network is to be opened for; return the epoch and the desired keys."""
    if not isinstance(mode, str) or mode not in _MODES:
        near = nearest_name(mode, _MODES) if isinstance(mode, str) else None
        suggestion = "" if near is None else f" Did you mean {near!r}?"
        raise ValueError(
            f"A network runs in one of the modes {list(_MODES)}, not in {shorten(mode)}."
            f"{suggestion}"
        )
    number = _as_int(epoch)
    if number is None:
        raise TypeError(
            f"An epoch is an integer of at least {first_epoch}, not {shorten(epoch)} of type "
            f"{type(epoch).__name__}."
        )
    if number < first_epoch:
        raise ValueError(f"An epoch is an integer of at least {first_epoch}, not {number}.")
    if ds_id is not None and not isinstance(ds_id, str):
        raise TypeError(
            'ds_id is a string, "" for data without an id, or None to run the ops of every id, not '
            f"{shorten(ds_id)} of type {type(ds_id).__name__}."
        )
    keys = desired_output_keys
    desired = frozenset([keys] if isinstance(keys, str) else keys or ())
    for key in desired:
        if not isinstance(key, str):
            raise TypeError(
                f"desired_output_keys holds {shorten(key)} of type {type(key).__name__}, but keys "
                "are strings."
            )
    return number, desired


def _as_int(value: Any) -> int | None:
    """Return an integer of any type, such as numpy's, as an int, and None for any other value."""
    # numpy 1 accepts its bools as indices.
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def note_optimizers(model: Model) -> None:
    """Note the optimizers of a model, to see later which of them a program has set."""
    found = get_metadata(model, "optimizer"), get_metadata(model, "current_optimizer")
    # An optimizer may refer to its model, which must not be kept alive.
    optimizer, current = (None if one is None else ref(one) for one in found)
    _noted[model] = optimizer, current


def note_new_models(models: Iterable[Model]) -> None:
    """Note the optimizers of the models of which none were noted yet."""
    for model in models:
        if model not in _noted:
            note_optimizers(model)


def _choose_optimizer(model: Model, epoch: int) -> None:
    """Make the optimizer of an epoch the model's `current_optimizer`.

    A program may set `current_optimizer` itself where no scheduler chooses it.
    """
    optimizer, current = get_metadata(model, "optimizer"), get_metadata(model, "current_optimizer")
    noted = [None if one is None else one() for one in _noted.get(model, ())]
    current_was_set = bool(noted) and current is not noted[1]
    was_set = current_was_set and (optimizer is None or optimizer is noted[0])
    value = optimizer
    if hasattr(optimizer, "get_current_value"):
        value = optimizer.get_current_value(epoch)
        if was_set and all(current is not one for one in optimizer.get_all_values()):
            raise ValueError(
                f"The current_optimizer of model '{name_of(model)}' was set to "
                f"{type(current).__name__}, but its optimizer is a {type(optimizer).__name__}, "
                "which chooses one in each epoch. Set model.optimizer instead."
            )
    elif was_set:
        set_metadata(model, "optimizer", current)
        value = current
    elif current_was_set and current is not optimizer:
        raise ValueError(
            f"Both optimizer and current_optimizer of model '{name_of(model)}' were set, to "
            "different optimizers. Set model.optimizer only."
        )
    if value is not current:
        set_metadata(model, "current_optimizer", value)
    note_optimizers(model)


class Runner:
    """Runs the steps of one context eagerly; the frameworks' runners derive from it.

    Slicing, waiting for the device and postprocessing are added around it: see `step.py`.

    Args:
        context: The context.

    Attributes:
        context: The context.
        bound: The plan bound to the state, set when the network is entered.
        around: The kind and the name of the profile row for what is entered around the ops, such as
            autocast. None for nothing.
        ranks: Watches the steps of processes that communicate. None where none do.
    """

    bound: BoundPlan
    around: tuple[str, str] | None = None
    ranks: Any = None

    def __init__(self, context: NetworkContext) -> None:
        self.context = context

    def open(self) -> None:
        """Prepare the active models."""

    def close(self) -> None:
        """Undo `open`, even if it failed halfway."""

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

    def slicers(self) -> list[Any]:
        """Return the active slicers, for the batches that the steps run on."""
        return self.context.plan.slicers

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
        around = -1 if self.around is None else meter.row(*self.around)
        indices = bound.plan.op_indices
        # Deferred updates come after the last op.
        ops = None if indices is None else [*indices, len(self.context.plan.ops)]

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            before, after = _translate(ops, meter.before), _translate(ops, meter.after)
            return bound.step_timed(batch, log, first, before, after, around)

        return run


def _translate(indices: Sequence[int] | None, call: Around) -> Around:
    """Return `call` for the indices of a plan in which one op stands for several."""
    if indices is None or call is None:
        return call
    return lambda index: call(indices[index])
