"""What a network runs while somebody measures it: the same parts, with stamps between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fastnet._execute import Plan
from fastnet._slice import forward_slicers, reverse_slicers
from fastnet._stamps import StampLog
from fastnet.errors import add_note
from fastnet.network.layout import Layout
from fastnet.op.numpyop.numpyop import batch_forward, run_on_batch
from fastnet.types import Forward, State

__all__ = [
    "DEFERRED",
    "Meter",
    "RangeMeter",
    "Ranges",
    "StepMeter",
    "op_title",
    "postprocessed",
    "run_plan",
    "sliced",
    "titles",
    "waiting",
]

DEFERRED = "deferred updates"

Step = Callable[[Mapping[str, Any]], dict[str, Any]]
Around = Callable[[int], None] | None


class Ranges(Protocol):
    """What names ops to the profiler of a framework."""

    def active(self) -> bool:
        """Tell whether that profiler is on."""

    def before(self, place: int) -> None:
        """Begin the range of an op."""

    def after(self, place: int) -> None:
        """End it."""


class StepMeter(Protocol):
    """What takes the times of the steps of one opening.

    Attributes:
        log: Where each part of a step leaves a stamp when it is over.
        before: Called with the place of each op before it runs, and with the place after the last
            before deferred updates run; or None.
        after: Called with the same place when they are over, or None.
    """

    log: StampLog
    before: Around
    after: Around

    def row(self, kind: str, name: str, place: int | None = None) -> int:
        """Give the number that stamps of a part have: the same one for the same part."""

    def plan_rows(self, plan: Plan) -> int:
        """Give the first number of the stamps that a plan makes."""

    def measured(self, step: Step, plain: Step) -> Step:
        """Give what runs a step.

        Args:
            step: Runs a step, with stamps.
            plain: Runs it without any.
        """


class Meter(Protocol):
    """What takes the times of a network."""

    def found(self, mode: str, seconds: float, worked_out: bool) -> None:
        """Take down what finding a layout took."""

    def opened(self, mode: str, seconds: float) -> None:
        """Take down what opening the network took."""

    def open_step(self, layout: Layout, state: State, ranges: Ranges | None) -> StepMeter:
        """Give what takes the times of an opening's steps."""


class RangeMeter:
    """Names ops to the profiler of a framework, and keeps no times.

    Args:
        ranges: What names them.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.log = StampLog()
        self.before: Around = ranges.before
        self.after: Around = ranges.after
        self._lock = threading.Lock()

    def row(self, kind: str, name: str, place: int | None = None) -> int:
        """Give the number of all stamps."""
        return 0

    def plan_rows(self, plan: Plan) -> int:
        """Give the number of all stamps."""
        return 0

    def measured(self, step: Step, plain: Step) -> Step:
        """Give what runs a step with ranges; one in another thread meanwhile has none."""
        lock, log = self._lock, self.log

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            if not lock.acquire(blocking=False):
                return plain(batch)
            try:
                return step(batch)
            finally:
                log.keep(0)
                lock.release()

        return run


def op_title(op: Any) -> str:
    """Name an op by its class and its keys, as profiles do.

    Args:
        op: An op.

    Returns:
        For example ``"ModelOp(x) -> y_pred"``.
    """
    outputs = ", ".join(map(str, getattr(op, "outputs", ())))
    title = f"{type(op).__name__}({', '.join(map(str, getattr(op, 'inputs', ())))})"
    return f"{title} -> {outputs}" if outputs else title


def titles(ops: Sequence[Any]) -> list[str]:
    """Name what ranges and events are around: each op, and what the ops have put off.

    Args:
        ops: The ops in force.
    """
    return [*map(op_title, ops), DEFERRED]


def run_plan(plan: Plan, state: State, meter: StepMeter) -> Step:
    """Give what runs a plan, with stamps.

    Args:
        plan: The plan.
        state: The context of its steps.
        meter: What takes the times.
    """
    first, log = meter.plan_rows(plan), meter.log

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        return plan.step_timed(batch, state, log, first, meter.before, meter.after)

    return run


def sliced(
    step: Step, slicers: Sequence[Any], wait: Callable[[], None] | None, meter: StepMeter
) -> Step:
    """Give what cuts a batch, runs its minibatches and joins the results, with stamps.

    Args:
        step: Runs a minibatch.
        slicers: What cuts and joins.
        wait: Waits for the device, or None.
        meter: What takes the times.
    """
    log = meter.log
    cut = meter.row("cut", _by("cut", slicers, "slice_inputs"))
    join = meter.row("join", _by("join", slicers, "unslice_inputs"))
    rest, wait_row = meter.row("rest", "the rest"), meter.row("wait", "wait for the device")

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        results = []
        minibatches = forward_slicers(slicers, batch)
        log.stamp(cut)
        for place, minibatch in enumerate(minibatches):
            log.part = place + 1
            results.append(step(minibatch))
            log.stamp(rest)
        log.part = 0
        if wait is not None:
            wait()
            log.stamp(wait_row)
        joined = reverse_slicers(slicers, results, batch)
        log.stamp(join)
        return joined

    return run


def _by(what: str, slicers: Sequence[Any], keys: str) -> str:
    """Say which of the slicers do something: those that have keys to do it to."""
    names = dict.fromkeys(type(each).__name__ for each in slicers if getattr(each, keys, None))
    return f"{what} by {', '.join(names)}" if names else what


def waiting(step: Step, wait: Callable[[], None], meter: StepMeter) -> Step:
    """Give what waits for the device after a step, with stamps.

    Args:
        step: Runs a step.
        wait: Waits.
        meter: What takes the times.
    """
    log = meter.log
    rest, wait_row = meter.row("rest", "the rest"), meter.row("wait", "wait for the device")

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        log.stamp(rest)
        wait()
        log.stamp(wait_row)
        return result

    return run


def postprocessed(
    step: Step, ops: Sequence[Any], state: State, target_type: str, meter: StepMeter
) -> Step:
    """Give what runs postprocessing after a step, with stamps.

    Args:
        step: Runs a step.
        ops: The postprocessing ops.
        state: The context of the steps.
        target_type: The framework of the tensors that arrays become again.
        meter: What takes the times.
    """
    log = meter.log
    rest = meter.row("rest", "the rest")
    around = meter.row("conversion", "arrays for postprocessing, and back")
    places = {id(op): place for place, op in enumerate(ops)}

    def bind(op: Any) -> Forward:
        place = places[id(op)]
        row, forward = meter.row("postprocessing", op_title(op), place), batch_forward(op)

        def run(data: Any, state: State) -> Any:
            log.stamp(around)
            result = forward(data, state)
            log.stamp(row)
            return result

        return run

    forwards = {id(op): bind(op) for op in ops}

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        log.stamp(rest)
        try:
            run_on_batch(ops, result, state, target_type, False, lambda op: forwards[id(op)])
        except Exception as error:
            add_note(error, "This was in the network's postprocessing.")
            raise
        log.stamp(around)
        return result

    return run
