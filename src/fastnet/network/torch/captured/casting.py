"""Weights within autocast, which casts each of them once a step: whether parts of it can, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch.update import parameters_of
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.network.torch.captured.held import Held, TooMuch
from fastnet.network.torch.captured.parts import Stretch
from fastnet.network.updates import updates_in
from fastnet.op.tensorop.model import ModelOp, UpdateOp

__all__ = ["that_cast_alike"]


# the ids of weights; None for any that there are
_Weights = set[int] | None


def that_cast_alike(
    plan: ExecutionPlan, found: list[Stretch], has_run: Callable[[CodeType], bool]
) -> list[Stretch]:
    """Pick the rows of ops that have all weights as they have them in a step op by op.

    There what autocast has cast of a weight counts until the step's end, also after an update. What
    is compiled has a cast of its own, which no op outside of it has, and the other way round.

    Args:
        plan: The ops.
        found: Rows of them.
        has_run: Tells of code whether it has run in a step.

    Returns:
        The rows between which, and the ops that run by themselves, no weight is cast before it is
        updated and read afterwards.
    """
    reached = [_reached(plan, place, has_run) for place in range(len(plan.ops))]
    changed = list(map(_changed, plan.ops, reached))
    read = [
        set() if type(op) is UpdateOp else weights
        for op, weights in zip(plan.ops, reached, strict=True)
    ]
    while True:
        rows = {place: row for row, stretch in enumerate(found) for place in stretch.places}
        apart = {
            rows.get(place)
            for one, other in _cast_and_read(changed, read)
            if rows.get(one) != rows.get(other)
            for place in (one, other)
        } - {None}
        if not apart:
            return found
        found = [stretch for row, stretch in enumerate(found) if row not in apart]


def _cast_and_read(changed: Sequence[_Weights], read: Sequence[_Weights]) -> list[tuple[int, int]]:
    """List the places of ops of which one reads weights that change until the other reads them."""
    return [
        (before, after)
        for place, weights in enumerate(changed)
        for after in range(place + 1, len(read))
        if _meet(weights, read[after])
        for before in range(place + 1)
        if _meet(weights, read[before])
    ]


def _meet(one: _Weights, other: _Weights) -> bool:
    if one is None or other is None:
        return one != set() != other
    return not one.isdisjoint(other)


def _reached(plan: ExecutionPlan, place: int, has_run: Callable[[CodeType], bool]) -> _Weights:
    """Return what an op can read, or write to."""
    try:
        held = Held([(plan.describe(place), plan.ops[place])], has_run, everything=True)
    except TooMuch:
        return None
    return {key for key, tensor in held.tensors.items() if tensor.requires_grad}


def _changed(op: Any, reached: _Weights) -> _Weights:
    """Return what an op may change."""
    if type(op) is ModelOp and "forward" not in vars(op):
        return set()
    updated = {
        id(one)
        for update in updates_in([op])
        for one in parameters_of(update.model, get_metadata(update.model, "current_optimizer"))
    }
    if type(op) is UpdateOp:
        return updated
    return None if reached is None else reached | updated
