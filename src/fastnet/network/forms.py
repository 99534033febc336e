"""Forms: what a batch looks like to a graph, with a slot where each tensor stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fastnet._trace import Parts, Slot, TensorKind, Trace, TracedStep, map_form

__all__ = [
    "any_batch",
    "any_size",
    "covers",
    "difference",
    "join_shapes",
    "same_shapes",
    "slots_of",
]

Shape = tuple[int | None, ...] | None

# what a text shows
_SHOWN = (str, bytes, bool, int, float, complex)


def slots_of(form: Any) -> list[Slot]:
    """List the slots of a form, in order.

    Args:
        form: A form, or a list of forms.

    Returns:
        The slots; several for what is made of several tensors.
    """
    slots: list[Slot] = []

    def note(slot: Slot) -> Shape:
        slots.append(slot)
        return slot.shape

    _map_shapes(form, note)
    return slots


def any_batch(form: Any) -> Any:
    """Leave the first axis of each tensor open.

    Args:
        form: A form, or a list of forms.

    Returns:
        A new form.
    """
    return _map_shapes(form, lambda slot: (None, *slot.shape[1:]) if slot.shape else slot.shape)


def any_size(form: Any) -> Any:
    """Leave every axis of each tensor open.

    Args:
        form: A form, or a list of forms.

    Returns:
        A new form.
    """
    return _map_shapes(form, lambda slot: None if slot.shape is None else (None,) * len(slot.shape))


def join_shapes(form: Any, other: Any) -> Any:
    """Leave open each axis that has one length in a form and another one in another form.

    Args:
        form: A form, or a list of forms.
        other: One that differs in nothing but the lengths of axes.

    Returns:
        A new form, which covers both.
    """
    others = iter(_shapes(other))

    def join(slot: Slot) -> Shape:
        shape = next(others)
        if slot.shape is None or shape is None:
            return None
        return tuple(a if a == b else None for a, b in zip(slot.shape, shape, strict=True))

    return _map_shapes(form, join)


def covers(wide: Any, narrow: Any) -> bool:
    """Tell whether all that fits one form fits another form too.

    Args:
        wide: The form that is to take more.
        narrow: The form that is to take less.

    Returns:
        Whether it is so.
    """
    # the kernel matches a form with another as it does a batch, where slots are the tensors
    step = TracedStep(("form",), _SLOTS, _nothing)
    step.traces = [Trace(_nothing, [wide], {})]
    return step.fits({"form": narrow})


def same_shapes(forms: list[Any], others: list[Any]) -> bool:
    """Tell whether forms that differ in nothing else have the same shapes.

    Args:
        forms: The forms.
        others: The other forms.

    Returns:
        Whether they are alike.
    """
    return _shapes(forms) == _shapes(others)


def difference(keys: list[str], forms: list[Any], before: list[Any]) -> str:
    """Say why a batch does not fit what was traced.

    Args:
        keys: The keys that are read.
        forms: The form of the value of each key.
        before: The form that was traced for each of them.

    Returns:
        The first difference, in words.
    """
    for key, form, old in zip(keys, forms, before, strict=True):
        if covers(old, form):
            continue
        if isinstance(form, Slot) and isinstance(old, Slot):
            if form.type != old.type:
                return f"'{key}' is of type {_type(form)}, not {_type(old)} as before"
            return f"'{key}' has the shape {_shape(form)}, where {_shape(old)} was traced"
        if covers(any_size(form), any_size(old)):
            return f"'{key}' holds tensors of other shapes than before"
        if _kind(form) != _kind(old):
            return f"'{key}' is {_kind(form)}, not {_kind(old)} as before"
        if isinstance(form, _SHOWN):
            return (
                f"'{key}' is {_short(form)}, not {_short(old)} as before; a value that is no "
                "tensor is part of the graph"
            )
        return f"'{key}' holds something else than before"
    return "something in the batch is not as before"


def _map_shapes(form: Any, shape_of: Callable[[Slot], Shape]) -> Any:
    def change(slot: Slot) -> Slot:
        return Slot(slot.type, shape_of(slot))

    def put(part: Slot | Parts) -> Slot | Parts:
        if isinstance(part, Slot):
            return change(part)
        return Parts(part.kind, [change(slot) for slot in part.slots])

    return map_form(form, put)


def _nothing(value: Any) -> Any:
    return None


_SLOTS = TensorKind(
    Slot,
    type_of=lambda slot: slot.type,
    shape_of=lambda slot: slot.shape,
    convert=_nothing,
    split=lambda part: (part.kind, part.slots) if isinstance(part, Parts) else None,
    join=Parts,
)


def _shapes(form: Any) -> list[Shape]:
    return [slot.shape for slot in slots_of(form)]


def _type(slot: Slot) -> str:
    return str(tf.dtypes.as_dtype(slot.type).name)


def _shape(slot: Slot) -> str:
    if slot.shape is None:
        return "(?)"
    return f"({', '.join('any' if size is None else str(size) for size in slot.shape)})"


def _kind(form: Any) -> str:
    if isinstance(form, Slot):
        return "a tensor"
    if isinstance(form, Parts):
        return f"a {form.kind.spec.value_type.__name__}"
    return f"a value of type {type(form).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
