"""The active ops, postprocessing ops and slicers, and the reasons why the others are inactive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastnet._resolve import OpSpec, Spec
from fastnet.backend.model_metadata import name_of
from fastnet.errors import op_name
from fastnet.explain.subject import Subject
from fastnet.op.op import is_delete
from fastnet.types import is_given, is_scheduler
from fastnet.util.formatting import format_ds_ids, format_modes
from fastnet.util.names import MODES

__all__ = ["Item", "find_items", "format_op", "model_names"]

_META_SETTINGS = ("prob", "probs", "repeat", "max_iter")


@dataclass(frozen=True)
class Item:
    """An op, a postprocessing op or a slicer.

    Attributes:
        index: Its index among the active ones, or None if it is inactive.
        list_index: Its index in the network's list, where a scheduler is one entry.
        name: Its class, and the function it calls.
        inputs: The keys it reads, or slices.
        outputs: The keys it writes, or un-slices.
        modes: The modes it runs in; empty for all.
        ds_ids: The dataset ids it runs for, or with "!" does not run for; empty for all.
        models: The names of its models.
        takes_gradients: Whether it computes gradients.
        updates: Whether it updates a model.
        deferred: Whether its update waits until after the last op.
        deletes: Whether it deletes its inputs.
        has_effects: Whether it does more than write its outputs: it updates a model, has no
            outputs, or contains such an op.
        scheduler: The class of the scheduler it comes from, or None.
        setting: A description of its settings, such as the probability of `Sometimes`.
        ops: The ops inside a meta op.
        reason: Why it is inactive, or None if it is active.
    """

    index: int | None
    list_index: int
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    ds_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    takes_gradients: bool = False
    updates: bool = False
    deferred: bool = False
    deletes: bool = False
    has_effects: bool = False
    scheduler: str | None = None
    setting: str = ""
    ops: tuple[Item, ...] = ()
    reason: str | None = None

    def format_keys(self) -> str:
        """Return the inputs and outputs, such as ``"x, t -> loss"``."""
        return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}".strip()


def find_items(subject: Subject, part: str) -> tuple[list[Item], list[Item]]:
    """Return the active and the inactive items of "ops", "postprocessing" or "slicers"."""
    # Only the plan knows the keys that the network has resolved.
    flow = subject.plan.flow if part == "ops" and subject.plan is not None else ()
    active: list[Item] = []
    inactive: list[Item] = []
    for list_index, entry in enumerate(getattr(subject, part)):
        for item in _read_entry(subject, list_index, entry):
            if item.reason is not None:
                inactive.append(item)
                continue
            index = len(active)
            item = replace(item, index=index)
            if index < len(flow):
                item = replace(item, inputs=flow[index][0], outputs=flow[index][1])
            if part == "ops" and index >= subject.first_deferred:
                item = replace(item, deferred=True)
            active.append(item)
    return active, inactive


def format_op(item: Item) -> str:
    """Return the name of an active op in a sentence: ``"op 2, CrossEntropy (y, t -> loss)"``."""
    return f"op {item.index}, {item.name} ({item.format_keys()})"


def model_names(models: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of models, in order."""
    return tuple(sorted(name_of(model) for model in models))


def _read_entry(subject: Subject, list_index: int, entry: Any) -> Iterator[Item]:
    """Return the item of an entry, or the items of all values of a scheduler."""
    if not is_scheduler(entry):
        yield _read_item(subject, list_index, entry, None)
        return
    scheduler = type(entry).__name__
    try:
        current = entry.get_current_value(subject.epoch)
        given = op_name(current) if is_given(current) else "nothing"
    except Exception as error:
        current = None
        given = f"an error ({type(error).__name__})"
    if is_given(current):
        yield _read_item(subject, list_index, current, scheduler)
    reason = f"{scheduler} gives {given} in epoch {subject.epoch}"
    # Hold the values: a scheduler may create them for this call, and ids of freed objects recur.
    seen = {id(current): current}
    for value in entry.get_all_values():
        if is_given(value) and id(value) not in seen:
            seen[id(value)] = value
            yield replace(_describe(value, list_index), scheduler=scheduler, reason=reason)


def _read_item(subject: Subject, list_index: int, value: Any, scheduler: str | None) -> Item:
    try:
        spec: Spec = subject.read(value)
    except Exception as error:
        reason = f"it cannot be read: {type(error).__name__}: {error}"
        name = value.__name__ if isinstance(value, type) else op_name(value)
        return Item(None, list_index, name, scheduler=scheduler, reason=reason)
    item = replace(_describe(value, list_index), scheduler=scheduler)
    if isinstance(spec, OpSpec):
        item = replace(
            item,
            models=model_names(spec.models),
            takes_gradients=spec.takes_gradients,
            deletes=spec.deletes,
        )
    if not spec.runs_in(subject.mode, None):
        return replace(item, reason=format_modes(item.modes))
    if not spec.runs_in(subject.mode, subject.ds_id):
        return replace(item, reason=format_ds_ids(item.ds_ids))
    return item


def _describe(value: Any, list_index: int) -> Item:
    is_slicer = hasattr(value, "slice_inputs")
    inner = tuple(_describe(op, index) for index, op in enumerate(_inner_ops(value)))
    outputs = _strings(value, "unslice_inputs" if is_slicer else "outputs")
    deletes = not is_slicer and is_delete(value)
    updates = bool(_call(value, "get_fe_loss_keys", ()))
    return Item(
        index=None,
        list_index=list_index,
        name=op_name(value),
        inputs=_strings(value, "slice_inputs" if is_slicer else "inputs"),
        outputs=outputs,
        modes=tuple(sorted(_strings(value, "mode"), key=_mode_order)),
        ds_ids=tuple(sorted(_strings(value, "ds_id"))),
        models=model_names(_call(value, "get_fe_models", ())),
        takes_gradients=_call(value, "fe_retain_graph", None) is not None,
        updates=updates,
        deferred=bool(getattr(value, "defer", False)),
        deletes=deletes,
        has_effects=updates or not (outputs or deletes) or any(op.has_effects for op in inner),
        setting=_format_settings(value) if inner else "; ".join(_call(value, "told_settings", ())),
        ops=inner,
    )


def _mode_order(mode: str) -> tuple[int, str]:
    return MODES.index(mode) if mode in MODES else len(MODES), mode


def _strings(value: Any, attribute: str) -> tuple[str, ...]:
    names = getattr(value, attribute, None)
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _call(value: Any, method: str, default: Any) -> Any:
    return getattr(value, method, lambda: default)()


def _inner_ops(value: Any) -> list[Any]:
    """Return the ops of any meta op: several in `ops`, or one in `op`."""
    ops = getattr(value, "ops", None)
    if isinstance(ops, (list, tuple)):
        return [op for op in ops if hasattr(op, "forward")]
    op = getattr(value, "op", None)
    return [op] if hasattr(op, "forward") else []


def _format_settings(value: Any) -> str:
    """Return the settings of a meta op, such as ``"prob=0.5"``."""
    settings = {name: getattr(value, name, None) for name in _META_SETTINGS}
    return ", ".join(
        f"{name}={getattr(setting, '__name__', setting)}"
        for name, setting in settings.items()
        if setting is not None
    )
