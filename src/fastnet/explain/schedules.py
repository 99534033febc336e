"""The values of schedulers from epoch to epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.errors import op_name
from fastnet.explain.subject import Subject
from fastnet.types import Model, is_given, is_scheduler

__all__ = ["Schedule", "current_optimizers", "find_schedules", "format_optimizer"]

# Schedulers of other classes than fastnet's do not say in which epochs their values change.
_UNKNOWN_EPOCHS = 20


@dataclass(frozen=True)
class Schedule:
    """The values of a scheduler.

    Attributes:
        where: What it schedules, such as "ops[1]" or "optimizer of 'model'".
        name: The scheduler's class.
        values: Pairs of an epoch and the value from that epoch on.
        cycle: The number of epochs after which the values repeat, or None.
        creates: Whether it returns another object in each call, so that TensorFlow traces again
            each time the network is entered.
    """

    where: str
    name: str
    values: tuple[tuple[int, str], ...]
    cycle: int | None
    creates: bool


def find_schedules(subject: Subject) -> list[Schedule]:
    """Return the schedules of ops, postprocessing, slicers and, in mode "train", optimizers."""
    items = [(f"ops[{index}]", item) for index, item in enumerate(subject.ops)]
    if subject.mode == "train":
        items += [
            (f"optimizer of '{name_of(model)}'", get_metadata(model, "optimizer"))
            for model in subject.models
        ]
    for part in ("postprocessing", "slicers"):
        items += [(f"{part}[{index}]", item) for index, item in enumerate(getattr(subject, part))]
    return [_read_schedule(where, item) for where, item in items if is_scheduler(item)]


def current_optimizers(subject: Subject) -> dict[str, tuple[Model, Any]]:
    """Return each model by name with its optimizer in the epoch, or the scheduler's exception."""
    found: dict[str, tuple[Model, Any]] = {}
    for model in subject.models:
        optimizer: Any = get_metadata(model, "optimizer")
        if is_scheduler(optimizer):
            try:
                optimizer = optimizer.get_current_value(subject.epoch)
            except Exception as error:
                optimizer = error
        found[name_of(model)] = model, optimizer
    return found


def format_optimizer(optimizer: Any) -> str:
    """Return the class of an optimizer of torch or Keras, and its learning rate if it has one."""
    if optimizer is None:
        return "no optimizer"
    name = type(optimizer).__name__
    if isinstance(optimizer, Exception):
        return f"{name}: {optimizer}"
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else getattr(optimizer, "learning_rate", None)
    try:
        return f"{name} (learning rate {float(rate):.6g})"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name


def _read_schedule(where: str, scheduler: Any) -> Schedule:
    epochs = getattr(scheduler, "epoch_dict", None)
    repeated = getattr(scheduler, "repeat_list", None)
    cycle = len(repeated) if isinstance(repeated, list) else None
    values: list[tuple[int, str]] = []
    creates = False
    for epoch in sorted({1, *epochs}) if epochs else range(1, (cycle or _UNKNOWN_EPOCHS) + 1):
        try:
            value = scheduler.get_current_value(epoch)
            creates = creates or value is not scheduler.get_current_value(epoch)
            text = _format_value(value) if is_given(value) else "nothing"
        except Exception as error:
            values.append((epoch, format_optimizer(error)))
            break
        if not values or values[-1][1] != text:
            values.append((epoch, text))
    return Schedule(where, type(scheduler).__name__, tuple(values), cycle, creates)


def _format_value(value: Any) -> str:
    """Return the name of an op or slicer with its keys, or of an optimizer."""
    for inputs, outputs in (("inputs", "outputs"), ("slice_inputs", "unslice_inputs")):
        if hasattr(value, inputs):
            keys = f"{', '.join(getattr(value, inputs))} -> {', '.join(getattr(value, outputs))}"
            return f"{op_name(value)} ({keys.strip()})"
    return format_optimizer(value)
