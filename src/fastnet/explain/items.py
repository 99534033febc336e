"""The active ops, postprocessing ops and slicers, and the reasons why the others are inactive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastnet._resolve import OpSpec, Spec
from fastnet.backend.model_metadata import name_of
from fastnet.errors import op_name
from fastnet.op.op import inner_ops_of, is_delete
from fastnet.op.tensorop.foreign_op import as_tensor_op, takes_gradients
from fastnet.op.tensorop.gradient.fgsm import FGSM
from fastnet.op.tensorop.gradient.gradient import GradientOp
from fastnet.types import Model, is_given, is_scheduler
from fastnet.util.formatting import format_ds_ids, format_modes

_META_SETTINGS = ("prob", "probs", "repeat", "max_iter")


@dataclass(frozen=True)
class Item:
    """An op, a postprocessing op or a slicer.

    Attributes:
        index: Its index among the active ones, or None if it is inactive.
        name: Its class, and the function it calls.
        inputs: The keys it reads, or slices.
        outputs: The keys it writes, or unslices.
        modes: The modes it runs in; empty for all.
        ds_ids: The dataset ids it runs for, or with "!" does not run for; empty for all.
        models: The names of its models.
        takes_gradients: Whether it computes gradients.
        losses: The keys of the losses that it differentiates to update models.
        is_first_order: Whether it writes gradients that cannot be differentiated again.
        differentiated_inputs: The keys with respect to which it computes gradients.
        deferred: Whether its update waits until after the last op.
        deletes: Whether it deletes its inputs.
        has_effects: Whether it does more than write its outputs: it updates a model, has no
            outputs, or contains such an op.
        scheduler: The class of the scheduler it comes from, or None.
        setting: A description of its settings, such as the probability of `Sometimes`.
        ops: The ops inside a meta op.
        unneeded: Whether the result does not need it.
        reason: Why it is inactive, or None if it is active.
        is_of_other_data: Whether it is inactive because of the dataset id alone.
    """

    index: int | None
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    ds_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    takes_gradients: bool = False
    losses: tuple[str, ...] = ()
    is_first_order: bool = False
    differentiated_inputs: tuple[str, ...] = ()
    deferred: bool = False
    deletes: bool = False
    has_effects: bool = False
    scheduler: str | None = None
    setting: str = ""
    ops: tuple[Item, ...] = ()
    unneeded: bool = False
    reason: str | None = None
    is_of_other_data: bool = False

    def format_keys(self) -> str:
        """Return the inputs and outputs, such as ``"x, t -> loss"``."""
        return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}".strip()

    def format(self) -> str:
        """Return the name and the keys, such as ``"CrossEntropy (x, t -> loss)"``."""
        return f"{self.name} ({self.format_keys()})"


def find_items(
    entries: Iterable[Any],
    read: Callable[[Any], Spec],
    mode: str,
    epoch: int,
    ds_id: str | None,
    flow: Sequence[tuple[Any, ...]],
) -> tuple[list[Item], list[Item]]:
    """Return the active and the inactive items of a list of a network.

    `read` returns the spec of an item, and `flow` has the resolved keys of each active item if they
    are known.
    """
    active: list[Item] = []
    inactive: list[Item] = []
    for entry in entries:
        scheduler = type(entry).__name__ if is_scheduler(entry) else None
        for value, reason in _values_of(entry, epoch):
            if reason is None:
                item = _read_item(read, value, mode, ds_id)
            else:
                item = replace(describe(value), reason=reason)
            item = replace(item, scheduler=scheduler)
            if item.reason is not None:
                inactive.append(item)
                continue
            index = len(active)
            if index < len(flow):
                item = replace(item, inputs=flow[index][0], outputs=flow[index][1])
            active.append(replace(item, index=index))
    return active, inactive


def _values_of(entry: Any, epoch: int) -> Iterator[tuple[Any, str | None]]:
    """Return the value of an entry, and those that its scheduler gives in other epochs."""
    if not is_scheduler(entry):
        yield entry, None
        return
    try:
        current = entry.get_current_value(epoch)
        current_name = op_name(current) if is_given(current) else "nothing"
    except Exception as error:
        current = None
        current_name = f"an error ({type(error).__name__})"
    # Keys are ids, so hold the values, which a scheduler may create for this call.
    values = {id(value): value for value in [current, *entry.get_all_values()] if is_given(value)}
    for value in values.values():
        reason = f"{type(entry).__name__} gives {current_name} in epoch {epoch}"
        yield value, None if value is current else reason


def _read_item(read: Callable[[Any], Spec], value: Any, mode: str, ds_id: str | None) -> Item:
    try:
        spec = read(value)
    except Exception as error:
        reason = f"it cannot be read: {type(error).__name__}: {error}"
        name = value.__name__ if isinstance(value, type) else op_name(value)
        return Item(None, name, reason=reason)
    item = describe(value)
    if isinstance(spec, OpSpec):
        models, takes_gradients = _model_names(spec.models), spec.takes_gradients
        item = replace(item, models=models, takes_gradients=takes_gradients, deletes=spec.deletes)
    if not spec.runs_in(mode, None):
        return replace(item, reason=format_modes(item.modes))
    if not spec.runs_in(mode, ds_id):
        return replace(item, reason=format_ds_ids(item.ds_ids), is_of_other_data=True)
    return item


def describe(value: Any, index: int | None = None) -> Item:
    """Return the item of an op or slicer by its attributes alone."""
    is_slicer = hasattr(value, "slice_inputs")
    inner = tuple(describe(op, index) for index, op in enumerate(inner_ops_of(value)))
    outputs = _strings(value, "unslice_inputs" if is_slicer else "outputs")
    deletes = not is_slicer and is_delete(value)
    adapted = as_tensor_op(value)
    losses = adapted.get_fe_loss_keys()
    inputs = _strings(value, "slice_inputs" if is_slicer else "inputs")
    return Item(
        index=index,
        name=op_name(value),
        inputs=inputs,
        outputs=outputs,
        modes=tuple(sorted(_strings(value, "mode"))),
        ds_ids=tuple(sorted(_strings(value, "ds_id"))),
        models=_model_names(adapted.get_fe_models()),
        takes_gradients=takes_gradients(value),
        # An update that is given gradients does not read its loss.
        losses=tuple(key for key in inputs if key in losses and not inner),
        is_first_order=isinstance(value, GradientOp) and not value.higher_order,
        differentiated_inputs=_differentiated_inputs(value, inputs, outputs),
        deferred=bool(adapted.defer),
        deletes=deletes,
        has_effects=bool(losses) or not (outputs or deletes) or any(op.has_effects for op in inner),
        setting=_format_settings(value, inner),
        ops=inner,
    )


def _differentiated_inputs(
    value: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[str, ...]:
    if isinstance(value, FGSM):
        return inputs[:1]
    if isinstance(value, GradientOp) and value.model is None:
        # It has an input, an output and a final for each gradient.
        return inputs[: len(outputs)]
    return ()


def _model_names(models: Iterable[Model]) -> tuple[str, ...]:
    return tuple(sorted(name_of(model) for model in models))


def _strings(value: Any, attribute: str) -> tuple[str, ...]:
    names = getattr(value, attribute, None)
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _format_settings(value: Any, inner: tuple[Item, ...]) -> str:
    """Describe the settings of an op, for a meta op such as ``"prob=0.5"``."""
    if not inner:
        return "; ".join(as_tensor_op(value).describe_settings())
    texts = []
    for name in _META_SETTINGS:
        setting = getattr(value, name, None)
        if setting is not None:
            texts.append(f"{name}={getattr(setting, '__name__', setting)}")
    return ", ".join(texts)
