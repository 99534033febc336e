"""The values of schedulers from epoch to epoch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.explain.items import describe
from fastnet.types import Model, is_given, is_scheduler

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
    """

    where: str
    name: str
    values: tuple[tuple[int, str], ...]
    cycle: int | None


def find_schedules(lists: Mapping[str, Sequence[Any]], models: Iterable[Model]) -> list[Schedule]:
    """Return the schedules of ops, postprocessing and slicers, and of optimizers of models."""
    items = [(f"{part}[{index}]", item) for part in lists for index, item in enumerate(lists[part])]
    for model in models:
        items.append((f"optimizer of '{name_of(model)}'", get_metadata(model, "optimizer")))
    return [_read_schedule(where, item) for where, item in items if is_scheduler(item)]


def current_optimizers(
    models: Iterable[Model], names: Container[str], epoch: int
) -> dict[str, tuple[Model, Any]]:
    """Return models by name with their optimizers in the epoch, or a scheduler's exception."""
    optimizers: dict[str, tuple[Model, Any]] = {}
    for model in models:
        if name_of(model) not in names:
            continue
        optimizer: Any = get_metadata(model, "optimizer")
        if is_scheduler(optimizer):
            try:
                optimizer = optimizer.get_current_value(epoch)
            except Exception as error:
                optimizer = error
        optimizers[name_of(model)] = model, optimizer
    return optimizers


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
    for epoch in sorted({1, *epochs}) if epochs else range(1, (cycle or _UNKNOWN_EPOCHS) + 1):
        try:
            text = _format_value(scheduler.get_current_value(epoch))
        except Exception as error:
            values.append((epoch, format_optimizer(error)))
            break
        if not values or values[-1][1] != text:
            values.append((epoch, text))
    return Schedule(where, type(scheduler).__name__, tuple(values), cycle)


def _format_value(value: Any) -> str:
    """Return the name of an op or slicer with its keys, or of an optimizer."""
    if not is_given(value):
        return "nothing"
    if hasattr(value, "inputs") or hasattr(value, "slice_inputs"):
        return describe(value).format()
    return format_optimizer(value)
