"""Batches of other sizes: which axes 0 of their tensors a program leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastnet._trace import Length, Slot, map_form
from fastnet.network.torch.compiled.input_signature import KIND


class Rows(NamedTuple):
    """The tensors of a batch whose axis 0 has the batch size.

    Attributes:
        is_open: Whether a tensor has, for each tensor in order.
        known: A batch size that there is a program for already, or None.
        usual: The most likely batch size, as far as is known.
    """

    is_open: list[bool]
    known: int | None
    usual: int

    def indices(self) -> list[int]:
        """Return the indices of the tensors that have the batch size."""
        return [index for index, is_open in enumerate(self.is_open) if is_open]


def changed_axes(forms: Sequence[Any], values: Sequence[Any]) -> Rows | None:
    """Find the axes that differ between two batches, if they differ only in their size."""
    before, now = _slots(forms), _slots([KIND.form_of(value) for value in values])
    if len(before) != len(now):
        return None
    is_open = [old.shape != new.shape for old, new in zip(before, now, strict=True)]
    sizes = {
        (_size_of(old), _size_of(new))
        for old, new, differs in zip(before, now, is_open, strict=True)
        if differs
    }
    if len(sizes) != 1:
        return None
    ((known, size),) = sizes
    if known is None or size is None or size < 2:
        return None
    length = Length(lambda size: True)
    if not KIND.matches(open_forms(forms, is_open, length), list(values), length):
        return None
    return Rows(is_open, known, max(known, size))


def common_batch_size(values: Sequence[Any]) -> Rows | None:
    """Find the batch size if all tensors of a batch have the same length of axis 0."""
    slots = _slots([KIND.form_of(value) for value in values])
    sizes = {_size_of(slot) for slot in slots} - {None}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    if size is None or size < 2:
        return None
    return Rows([_size_of(slot) is not None for slot in slots], None, size)


def open_forms(forms: Sequence[Any], is_open: Sequence[bool], length: Length) -> list[Any]:
    """Put an open length in the place of the size of axis 0."""
    flags = iter(is_open)

    def open_slot(slot: Slot) -> Slot:
        if not next(flags) or not slot.shape:
            return slot
        return Slot(slot.type, (length, *slot.shape[1:]))

    return [map_form(form, open_slot, as_form=True) for form in forms]


def _slots(forms: Sequence[Any]) -> list[Slot]:
    slots: list[Slot] = []
    for form in forms:
        map_form(form, slots.append)
    return slots


def _size_of(slot: Slot) -> int | None:
    size = slot.shape[0] if slot.shape else None
    return size if isinstance(size, int) else None
