"""What schedulers change from epoch to epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fastnet.backend.model_metadata import get_metadata
from fastnet.errors import op_name
from fastnet.explain.items import model_names
from fastnet.explain.subject import Subject
from fastnet.schedule import get_current_items, get_signature_epochs
from fastnet.types import is_given, is_scheduler

__all__ = ["Change", "Schedule", "Schedules", "describe_optimizer", "find_schedules"]

# schedulers of other classes do not say when they come round, and some of them never do
_UNKNOWN_EPOCHS = 20
_LONGEST_CYCLE = 100
_LAST_EPOCH = 10_000


@dataclass(frozen=True)
class Schedule:
    """The values of a scheduler.

    Attributes:
        where: What it schedules, such as "ops[1]" or "optimizer of 'model'".
        name: The scheduler's class.
        values: What it gives at each of the epochs looked at, by epoch.
        cycle: After how many epochs its values come round, or None if they do not.
        now: What it gives in the epoch explained.
    """

    where: str
    name: str
    values: tuple[tuple[int, str], ...]
    cycle: int | None
    now: str


@dataclass(frozen=True)
class Change:
    """A change from one epoch to the next.

    Attributes:
        epoch: The first epoch of the new.
        starts: What is in force from then on, and was not.
        stops: What was in force, and is not any more.
        traces: Whether TensorFlow traces anew for it, as there was no such set of ops and
            optimizers in an earlier epoch.
    """

    epoch: int
    starts: tuple[str, ...]
    stops: tuple[str, ...]
    traces: bool


@dataclass(frozen=True)
class Schedules:
    """All that changes with the epoch.

    Attributes:
        last_epoch: The last epoch looked at: by then the schedules have changed for the last time,
            or come round.
        signature_epochs: The epochs with a set of items in force never seen before.
        schedulers: What each scheduler gives in these.
        changes: The epochs in which something is in force that was not in force before.
    """

    last_epoch: int
    signature_epochs: tuple[int, ...]
    schedulers: tuple[Schedule, ...]
    changes: tuple[Change, ...]


def find_schedules(subject: Subject) -> Schedules:
    """Look at what each epoch brings.

    Args:
        subject: The network and its opening.

    Returns:
        The schedules, those of optimizers among them in mode "train".
    """
    named = _named_items(subject)
    scheduled = [(where, item) for where, item in named if is_scheduler(item)]
    if not scheduled:
        return Schedules(last_epoch=1, signature_epochs=(1,), schedulers=(), changes=())
    last = _last_epoch([item for _, item in scheduled], subject.epoch)
    working = [(where, item) for where, item in named if _works(item, last)]
    signature = get_signature_epochs(
        [item for _, item in working], last, subject.mode, subject.ds_id
    )
    return Schedules(
        last_epoch=last,
        signature_epochs=tuple(signature),
        schedulers=tuple(_schedule(where, item, signature, subject) for where, item in scheduled),
        changes=tuple(_changes(subject, working, last)),
    )


def describe_optimizer(optimizer: Any) -> str:
    """Name an optimizer.

    Args:
        optimizer: An optimizer of torch or Keras, or None.

    Returns:
        Its class and its learning rate, if it says so.
    """
    if optimizer is None:
        return "no optimizer"
    name = type(optimizer).__name__
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else getattr(optimizer, "learning_rate", None)
    try:
        return f"{name} (learning rate {float(rate):.6g})"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name


def _named_items(subject: Subject) -> list[tuple[str, Any]]:
    named = [(f"ops[{index}]", item) for index, item in enumerate(subject.ops)]
    if subject.mode == "train":
        named += [
            (f"optimizer of '{name}'", get_metadata(model, "optimizer"))
            for name, model in zip(model_names(subject.models), subject.models, strict=True)
        ]
    for part in ("postprocessing", "slicers"):
        named += [(f"{part}[{index}]", item) for index, item in enumerate(getattr(subject, part))]
    return named


def _last_epoch(schedulers: list[Any], epoch: int) -> int:
    given: Any = epoch
    last = max(given, 1) if isinstance(given, int) else 1
    cycles = [1]
    for scheduler in schedulers:
        epochs = getattr(scheduler, "epoch_dict", None)
        cycle = _cycle(scheduler)
        if epochs:
            last = max(last, *epochs)
        elif cycle is not None:
            cycles.append(cycle)
        else:
            last = max(last, _UNKNOWN_EPOCHS)
    return min(last + min(math.lcm(*cycles), _LONGEST_CYCLE) - 1, _LAST_EPOCH)


def _cycle(scheduler: Any) -> int | None:
    values = getattr(scheduler, "repeat_list", None)
    return len(values) if isinstance(values, list) else None


def _works(item: Any, last: int) -> bool:
    """Return whether a scheduler has a value, or None, for each epoch; one that fails has a row."""
    if not is_scheduler(item):
        return True
    try:
        for epoch in range(1, last + 1):
            item.get_current_value(epoch)
    except Exception:
        return False
    return True


def _schedule(where: str, scheduler: Any, epochs: list[int], subject: Subject) -> Schedule:
    return Schedule(
        where=where,
        name=type(scheduler).__name__,
        values=tuple((epoch, _value(scheduler, epoch)) for epoch in epochs),
        cycle=_cycle(scheduler),
        now=_value(scheduler, subject.epoch),
    )


def _value(scheduler: Any, epoch: int) -> str:
    try:
        value = scheduler.get_current_value(epoch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return _describe(value) if is_given(value) else "nothing"


def _describe(value: Any) -> str:
    """Name what a scheduler gives: an op or slicer with its keys, or an optimizer."""
    for inputs, outputs in (("inputs", "outputs"), ("slice_inputs", "unslice_inputs")):
        if hasattr(value, inputs):
            keys = f"{', '.join(getattr(value, inputs))} -> {', '.join(getattr(value, outputs))}"
            return f"{op_name(value)} ({keys.strip()})"
    return describe_optimizer(value)


def _changes(subject: Subject, named: list[tuple[str, Any]], last: int) -> list[Change]:
    every = [item for _, item in named]
    graphed = [item for where, item in named if where.startswith(("ops", "optimizer"))]
    changes: list[Change] = []
    traced: set[frozenset[int]] = set()
    kept: list[Any] = []  # an op made for just an epoch must not leave its id to another
    before: dict[int, Any] | None = None
    for epoch in range(1, last + 1):
        now = {
            id(item): item for item in get_current_items(every, subject.mode, epoch, subject.ds_id)
        }
        graph = frozenset(
            id(item) for item in get_current_items(graphed, subject.mode, epoch, subject.ds_id)
        )
        if before is not None and now.keys() != before.keys():
            changes.append(
                Change(
                    epoch=epoch,
                    starts=tuple(_describe(now[one]) for one in now if one not in before),
                    stops=tuple(_describe(before[one]) for one in before if one not in now),
                    traces=subject.framework == "tf" and graph not in traced,
                )
            )
        traced.add(graph)
        kept.append(now)
        before = now
    return changes
