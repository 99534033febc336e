"""Input signatures, called forms: the structure of a batch, with a slot for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from typing import Any

import tensorflow as tf

from fastnet._trace import FORMS, Parts, Slot, WithAttributes, map_form
from fastnet.backend.tf.graph import UNKNOWN

Shape = tuple[int | None, ...] | None
# A key, and an axis of its tensors.
Axis = tuple[str, int]

# Values of these types are shown in reasons.
_SHOWN = (str, bytes, bool, int, float, complex)
_PART = "; a value that is not a tensor is a constant"


def slots_of(form: Any) -> list[Slot]:
    """List the slots of a form, in order."""
    slots: list[Slot] = []

    def note(slot: Slot) -> Shape:
        slots.append(slot)
        return slot.shape

    _map_shapes(form, note)
    return slots


def any_size(form: Any) -> Any:
    """Make every axis of each tensor dynamic."""
    return _map_shapes(form, lambda slot: None if slot.shape is None else (None,) * len(slot.shape))


def changed_axes(keys: list[str], forms: list[Any], others: list[Any]) -> set[Axis]:
    """Find the axes whose lengths differ between two lists of forms."""
    found: set[Axis] = set()
    for key, form, other in zip(keys, forms, others, strict=True):
        for slot, old in zip(slots_of(form), slots_of(other), strict=True):
            lengths = zip(slot.shape or (), old.shape or (), strict=True)
            found |= {(key, axis) for axis, (now, then) in enumerate(lengths) if now != then}
    return found


def has_unknown_lengths(forms: list[Any]) -> bool:
    """Return whether a length is unknown, in a graph around the step."""
    slots = (slot for form in forms for slot in slots_of(form))
    return any(slot.shape is None or UNKNOWN in slot.shape for slot in slots)


def open_lengths(keys: list[str], forms: list[Any], open_axes: Collection[Axis]) -> list[Any]:
    """Make some axes dynamic."""

    def open_some(key: str, form: Any) -> Any:
        def shape_of(slot: Slot) -> Shape:
            if slot.shape is None:
                return None
            return tuple(
                None if (key, axis) in open_axes else length
                for axis, length in enumerate(slot.shape)
            )

        return _map_shapes(form, shape_of)

    return [open_some(key, form) for key, form in zip(keys, forms, strict=True)]


def describe_difference(keys: list[str], forms: list[Any], before: list[Any]) -> str:
    """Return why a batch does not fit what was traced."""
    for key, form, old in zip(keys, forms, before, strict=True):
        if FORMS.matches(old, form):
            continue
        if FORMS.matches(any_size(form), any_size(old)):
            return f"'{key}' {_other_shape(form, old)}"
        return f"'{key}' {_other_value(form, old)}"
    return "something in the batch is not as before"


def _other_shape(form: Any, old: Any) -> str:
    if isinstance(form, Slot):
        return f"has the shape {_shape(form)}, where {_shape(old)} was traced"
    return "holds tensors of other shapes than before"


def _other_value(form: Any, old: Any) -> str:
    if isinstance(form, Slot) and isinstance(old, Slot):
        if form.type != old.type:
            return f"is of type {_type(form)}, not {_type(old)} as before"
        return _other_shape(form, old)
    if isinstance(form, WithAttributes) and isinstance(old, WithAttributes):
        if FORMS.matches(any_size(old.form), any_size(form.form)):
            return f"has other attributes than before{_PART}"
        form, old = form.form, old.form
    if _kind(form) != _kind(old):
        return f"is {_kind(form)}, not {_kind(old)} as before"
    if isinstance(form, _SHOWN):
        return f"is {_short(form)}, not {_short(old)} as before{_PART}"
    if isinstance(form, MutableMapping) and form.keys() == old.keys() and list(form) != list(old):
        return f"has its keys in the order {_short(list(form))}, not {_short(list(old))} as before"
    return "holds something else than before"


def _map_shapes(form: Any, shape_of: Callable[[Slot], Shape]) -> Any:
    def change(slot: Slot) -> Slot:
        return Slot(slot.type, shape_of(slot))

    def put(part: Slot | Parts) -> Slot | Parts:
        if isinstance(part, Slot):
            return change(part)
        return Parts(part.kind, [change(slot) for slot in part.slots])

    return map_form(form, put, as_form=True)


def _type(slot: Slot) -> str:
    return str(tf.dtypes.as_dtype(slot.type).name)


def _shape(slot: Slot) -> str:
    if slot.shape is None:
        return "(?)"
    return f"({', '.join(map(_length, slot.shape))})"


def _length(length: int | None) -> str:
    return {None: "any", UNKNOWN: "?"}.get(length, str(length))


def _kind(form: Any) -> str:
    if isinstance(form, Slot):
        return "a tensor"
    if isinstance(form, Parts):
        return f"a {form.kind.spec.value_type.__name__}"
    if isinstance(form, WithAttributes):
        form = form.form
    return f"a value of type {type(form).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
