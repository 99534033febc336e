"""What of a network's ops, postprocessing ops and slicers is in force, and why the rest is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastnet._resolve import OpSpec, Spec
from fastnet.backend.model_metadata import name_of
from fastnet.errors import op_name
from fastnet.explain.subject import Subject
from fastnet.op.op import is_delete
from fastnet.types import is_given, is_scheduler
from fastnet.util.formatting import format_ds_ids, format_modes

__all__ = ["Item", "find_items", "model_names", "name_op"]

_MODES = ("train", "eval", "test", "infer")


@dataclass(frozen=True)
class Item:
    """What there is to say of an op, a postprocessing op or a slicer.

    Attributes:
        index: Its place in the network's list, schedulers counted as one.
        place: Its place among those in force, or None if it is not.
        name: The name of its class, and of the function that it calls.
        inputs: The keys that it reads; those that a slicer cuts.
        outputs: The keys that it writes; those that a slicer joins.
        modes: The modes that it runs in; none for all.
        ds_ids: The dataset ids that it runs for, or with "!" does not run for; none for all.
        models: The names of the models that it holds.
        takes_gradients: Whether it takes gradients.
        updates: Whether it updates a model.
        deferred: Whether its update waits until after the last op.
        deletes: Whether it drops what it reads.
        acts: Whether it does more than write its outputs: it updates a model, or has no outputs,
            or has such an op inside.
        scheduler: The class of the scheduler that it comes from, or None.
        setting: What a meta op does with the ops inside of it, or what another op says that it does
            besides what its keys tell.
        inside: The ops inside of it.
        reason: Why it is not in force, or None if it is.
    """

    index: int
    place: int | None
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    modes: tuple[str, ...] = ()
    ds_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    takes_gradients: bool = False
    updates: bool = False
    deferred: bool = False
    deletes: bool = False
    acts: bool = False
    scheduler: str | None = None
    setting: str = ""
    inside: tuple[Item, ...] = ()
    reason: str | None = None

    def keys(self) -> str:
        """Write down what it reads and writes.

        Returns:
            For example ``"x, t -> loss"``.
        """
        return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}".strip()


def find_items(subject: Subject, part: str) -> tuple[list[Item], list[Item]]:
    """Tell apart what is in force and what is not.

    Args:
        subject: The network and its opening.
        part: "ops", "postprocessing" or "slicers".

    Returns:
        Those in force in order, and the others, each with its reason.
    """
    # what only the network knows: the keys that it has read
    flow = subject.plan.flow if part == "ops" and subject.plan is not None else ()
    chosen: list[Item] = []
    left_out: list[Item] = []
    for index, entry in enumerate(getattr(subject, part)):
        for item in _values(subject, index, entry):
            if item.reason is not None:
                left_out.append(item)
                continue
            place = len(chosen)
            item = replace(item, place=place)
            if place < len(flow):
                item = replace(item, inputs=flow[place][0], outputs=flow[place][1])
            if part == "ops" and place >= subject.first_deferred:
                item = replace(item, deferred=True)
            chosen.append(item)
    return chosen, left_out


def name_op(item: Item) -> str:
    """Name an op in force in a sentence.

    Args:
        item: The op.

    Returns:
        For example ``"op 2, CrossEntropy (y, t -> loss)"``.
    """
    return f"op {item.place}, {item.name} ({item.keys()})"


def model_names(models: Iterable[Any]) -> tuple[str, ...]:
    """Name models.

    Args:
        models: The models.

    Returns:
        The names that `build` gave them, or those of their classes, in order.
    """
    return tuple(sorted(name_of(model) for model in models))


def _values(subject: Subject, index: int, entry: Any) -> Iterator[Item]:
    """Return the item of an entry, or each of those that a scheduler may put in its place."""
    if not is_scheduler(entry):
        yield _judge(subject, index, entry, None)
        return
    scheduler = type(entry).__name__
    try:
        current = entry.get_current_value(subject.epoch)
        instead = _name(current) if is_given(current) else "nothing"
    except Exception as error:
        current = None
        instead = f"an error ({type(error).__name__})"
    if is_given(current):
        yield _judge(subject, index, current, scheduler)
    reason = f"{scheduler} gives {instead} in epoch {subject.epoch}"
    # the values are kept, so that none made for this call leaves its id to another
    seen = {id(current): current}
    for value in entry.get_all_values():
        if is_given(value) and id(value) not in seen:
            seen[id(value)] = value
            yield replace(_describe(value, index), scheduler=scheduler, reason=reason)


def _judge(subject: Subject, index: int, value: Any, scheduler: str | None) -> Item:
    try:
        spec: Spec = subject.read(value)
    except Exception as error:
        reason = f"it cannot be read: {type(error).__name__}: {error}"
        return Item(index, None, _name(value), (), (), scheduler=scheduler, reason=reason)
    item = replace(_describe(value, index), scheduler=scheduler)
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


def _describe(value: Any, index: int) -> Item:
    cuts = hasattr(value, "slice_inputs")
    inside = tuple(_describe(op, place) for place, op in enumerate(_inside(value)))
    outputs = _strings(value, "unslice_inputs" if cuts else "outputs")
    deletes = not cuts and is_delete(value)
    updates = bool(_ask(value, "get_fe_loss_keys", ()))
    return Item(
        index=index,
        place=None,
        name=_name(value),
        inputs=_strings(value, "slice_inputs" if cuts else "inputs"),
        outputs=outputs,
        modes=tuple(sorted(_strings(value, "mode"), key=_mode_order)),
        ds_ids=tuple(sorted(_strings(value, "ds_id"))),
        models=model_names(_ask(value, "get_fe_models", ())),
        takes_gradients=_ask(value, "fe_retain_graph", None) is not None,
        updates=updates,
        deferred=bool(getattr(value, "defer", False)),
        deletes=deletes,
        acts=updates or not (outputs or deletes) or any(op.acts for op in inside),
        setting=_setting(value) if inside else "; ".join(_ask(value, "told_settings", ())),
        inside=inside,
    )


def _name(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else op_name(value)


def _mode_order(mode: str) -> tuple[int, str]:
    return _MODES.index(mode) if mode in _MODES else len(_MODES), mode


def _strings(value: Any, attribute: str) -> tuple[str, ...]:
    names = getattr(value, attribute, None)
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _ask(value: Any, method: str, default: Any) -> Any:
    asked: Callable[[], Any] | None = getattr(value, method, None)
    return default if asked is None else asked()


def _inside(value: Any) -> list[Any]:
    """List the ops of a meta op, whoever wrote it: several under `ops`, or one under `op`."""
    ops = getattr(value, "ops", None)
    if isinstance(ops, (list, tuple)):
        return [op for op in ops if hasattr(op, "forward")]
    op = getattr(value, "op", None)
    return [op] if hasattr(op, "forward") else []


def _setting(value: Any) -> str:
    probs = getattr(value, "probs", None)
    if probs:
        return f"one of them a step, drawn with {', '.join(map(_short, probs))}"
    prob = getattr(value, "prob", None)
    if prob is not None:
        return f"in a step with probability {_short(prob)}"
    repeat = getattr(value, "repeat", None)
    if callable(repeat):
        most = getattr(value, "max_iter", None)
        read = ", ".join(getattr(value, "repeat_inputs", ()))
        return f"again while a condition of {read or 'nothing'} holds" + (
            "" if most is None else f", at most {most} times"
        )
    return "in a row" if repeat is None else f"{repeat} times"


def _short(share: Any) -> str:
    try:
        return f"{float(share):.3g}"
    except (TypeError, ValueError):
        return str(share)
