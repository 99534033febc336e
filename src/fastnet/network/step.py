"""Wrappers of a step: slicing, waiting for the device, postprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastnet._slice import forward_slicers, reverse_slicers
from fastnet.errors import add_note
from fastnet.network.metering import StepMeter, op_title
from fastnet.op.numpyop.numpyop import batch_forward, run_on_batch
from fastnet.types import RunStep, State

__all__ = ["postprocessed", "sliced", "waiting"]

_REST = ("rest", "the rest")
_WAIT = ("wait", "wait for the device")
_CONVERSION = ("conversion", "arrays for postprocessing, and back")


def sliced(
    step: RunStep,
    slicers: Sequence[Any],
    wait: Callable[[], None] | None,
    meter: StepMeter | None,
) -> RunStep:
    """Slice a batch, run its minibatches and merge the results."""
    cut, join, log = forward_slicers, reverse_slicers, None
    if meter is not None:
        log = meter.log
        cut = _stamped(cut, meter, "cut", _by("cut", slicers, "slice_inputs"))
        join = _stamped(join, meter, "join", _by("join", slicers, "unslice_inputs"))
        step = _stamped(step, meter, *_REST)
        wait = wait and _stamped(wait, meter, *_WAIT)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        results = []
        for minibatch in cut(slicers, batch):
            if log is not None:
                log.part += 1
            results.append(step(minibatch))
        if log is not None:
            log.part = 0
        if wait is not None:
            wait()
        return join(slicers, results, batch)

    return run


def waiting(step: RunStep, wait: Callable[[], None], meter: StepMeter | None) -> RunStep:
    """Wait for the device after a step."""
    if meter is not None:
        step, wait = _stamped(step, meter, *_REST), _stamped(wait, meter, *_WAIT)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        wait()
        return result

    return run


def postprocessed(
    step: RunStep, ops: Sequence[Any], state: State, target_type: str, meter: StepMeter | None
) -> RunStep:
    """Run postprocessing after a step."""
    run_ops, forwards = run_on_batch, {id(op): batch_forward(op) for op in ops}
    if meter is not None:
        step = _stamped(step, meter, *_REST)
        run_ops = _stamped(run_ops, meter, *_CONVERSION)
        before = meter.row(*_CONVERSION)
        for index, op in enumerate(ops):
            row = "postprocessing", op_title(op), index
            forwards[id(op)] = _stamped(forwards[id(op)], meter, *row, before=before)

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        result = step(batch)
        try:
            filtered = run_ops(ops, result, state, target_type, False, lambda op: forwards[id(op)])
            if filtered is not None:
                raise ValueError(
                    f"One of {list(map(op_title, ops))} returned {filtered!r}, but postprocessing "
                    "cannot drop samples: the network's results are already made. Filter in the "
                    "data pipeline."
                )
        except Exception as error:
            add_note(error, "This was in the network's postprocessing.")
            raise
        return result

    return run


def _stamped(
    call: Callable[..., Any], meter: StepMeter, *row: Any, before: int | None = None
) -> Callable[..., Any]:
    """Return `call` with a time stamp after it, and with one of the row `before` ahead of it."""
    stamp, after = meter.log.stamp, meter.row(*row)

    def run(*args: Any) -> Any:
        if before is not None:
            stamp(before)
        result = call(*args)
        stamp(after)
        return result

    return run


def _by(what: str, slicers: Sequence[Any], keys: str) -> str:
    """Name the slicers that have keys to work on."""
    names = dict.fromkeys(type(each).__name__ for each in slicers if getattr(each, keys, None))
    return f"{what} by {', '.join(names)}" if names else what
