"""What runs around the ops of a step: slicing, waiting for the device, postprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastnet._slice import forward_slicers, reverse_slicers
from fastnet.errors import add_note
from fastnet.network.metering import StepMeter, op_title
from fastnet.op.numpyop.numpyop import batch_forward, run_on_batch
from fastnet.types import Forward, RunStep, State

__all__ = ["postprocessed", "sliced", "waiting"]


def sliced(
    step: RunStep,
    slicers: Sequence[Any],
    wait: Callable[[], None] | None,
    meter: StepMeter | None,
) -> RunStep:
    """Slice a batch, run its minibatches and merge the results."""
    log = None if meter is None else meter.log
    cut = _row(meter, "cut", _by("cut", slicers, "slice_inputs"))
    join = _row(meter, "join", _by("join", slicers, "unslice_inputs"))
    rest = _row(meter, "rest", "the rest")
    waited = _row(meter, "wait", "wait for the device")

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        results = []
        minibatches = forward_slicers(slicers, batch)
        if log is not None:
            log.stamp(cut)
        for number, minibatch in enumerate(minibatches, 1):
            if log is not None:
                log.part = number
            results.append(step(minibatch))
            if log is not None:
                log.stamp(rest)
        if log is not None:
            log.part = 0
        if wait is not None:
            wait()
            if log is not None:
                log.stamp(waited)
        joined = reverse_slicers(slicers, results, batch)
        if log is not None:
            log.stamp(join)
        return joined

    return run


def waiting(step: RunStep, wait: Callable[[], None], meter: StepMeter | None) -> RunStep:
    """Wait for the device after a step."""
    log = None if meter is None else meter.log
    rest = _row(meter, "rest", "the rest")
    waited = _row(meter, "wait", "wait for the device")

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        if log is not None:
            log.stamp(rest)
        wait()
        if log is not None:
            log.stamp(waited)
        return result

    return run


def postprocessed(
    step: RunStep, ops: Sequence[Any], state: State, target_type: str, meter: StepMeter | None
) -> RunStep:
    """Run postprocessing after a step."""
    log = None if meter is None else meter.log
    rest = _row(meter, "rest", "the rest")
    around = _row(meter, "conversion", "arrays for postprocessing, and back")
    forwards = {
        id(op): batch_forward(op) if meter is None else _stamped(op, index, around, meter)
        for index, op in enumerate(ops)
    }

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        if log is not None:
            log.stamp(rest)
        try:
            run_on_batch(ops, result, state, target_type, False, lambda op: forwards[id(op)])
        except Exception as error:
            add_note(error, "It was raised in the network's postprocessing.")
            raise
        if log is not None:
            log.stamp(around)
        return result

    return run


def _stamped(op: Any, index: int, around: int, meter: StepMeter) -> Forward:
    """Return the function that runs a postprocessing op between two stamps."""
    log, forward = meter.log, batch_forward(op)
    row = meter.row("postprocessing", op_title(op), index)

    def run(data: Any, state: State) -> Any:
        log.stamp(around)
        result = forward(data, state)
        log.stamp(row)
        return result

    return run


def _row(meter: StepMeter | None, kind: str, name: str) -> int:
    return -1 if meter is None else meter.row(kind, name)


def _by(what: str, slicers: Sequence[Any], keys: str) -> str:
    """Name the slicers that have keys to work on."""
    names = dict.fromkeys(type(each).__name__ for each in slicers if getattr(each, keys, None))
    return f"{what} by {', '.join(names)}" if names else what
