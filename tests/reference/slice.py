"""Slices a batch into minibatches, and unslices their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastnet.errors import add_note, missing_key, not_a_batch


def check_slicers(slicers: Iterable[Any]) -> None:
    sliced: list[str] = []
    unsliced: list[str] = []
    for slicer in slicers:
        name = type(slicer).__name__
        twice = sorted(set(sliced) & set(slicer.slice_inputs))
        if twice:
            raise ValueError(
                f"Multiple slicers slice the same keys: {twice}, {name} among them. Let one slicer "
                "slice each key."
            )
        twice = sorted(set(unsliced) & set(slicer.unslice_inputs))
        if twice:
            raise ValueError(
                f"Multiple slicers unslice the same keys: {twice}, {name} among them. Let one "
                "slicer unslice each key."
            )
        sliced += slicer.slice_inputs
        unsliced += slicer.unslice_inputs
    if unsliced and not sliced:
        raise ValueError(
            f"The keys {sorted(set(unsliced))} are to be unsliced, but no active slicer slices "
            "anything. Give a slicer keys to `slice`, or restrict both to the same mode and ds_id."
        )


def forward_slicers(slicers: Iterable[Any], data: Mapping[str, Any]) -> list[dict[str, Any]]:
    active = [slicer for slicer in slicers if slicer.slice_inputs]
    minibatches: list[dict[str, Any]] = []
    if not hasattr(data, "keys"):
        raise not_a_batch(data)
    for slicer in active:
        name, keys = type(slicer).__name__, list(slicer.slice_inputs)
        for key in keys:
            if key not in data:
                raise missing_key(slicer, key, data, verb="slices")
        try:
            rows = list(slicer.slice_batches(tuple(data[key] for key in keys)))
        except Exception as error:
            add_note(error, f"Raised by {name} while it sliced {keys}.")
            raise
        if slicer is active[0]:
            minibatches = [dict(data) for _ in rows]
        if len(rows) != len(minibatches):
            raise ValueError(
                f"Slicers disagree on the number of minibatches: {type(active[0]).__name__} made "
                f"{len(minibatches)} of {list(active[0].slice_inputs)}, {name} made {len(rows)} "
                f"of {keys}. All active slicers must slice a batch into the same number of "
                "minibatches."
            )
        for index, row in enumerate(rows):
            values = list(row)
            if len(values) < len(keys):
                raise ValueError(
                    f"{name} slices {keys}, but its slice {index} has {len(values)} "
                    f"value{'' if len(values) == 1 else 's'}. Let slice_batches return a value for "
                    "each key in each slice."
                )
            minibatches[index].update(zip(keys, values, strict=False))
    return minibatches


def reverse_slicers(
    slicers: Iterable[Any], data: Sequence[Mapping[str, Any]], original_data: Mapping[str, Any]
) -> dict[str, Any]:
    if not data:
        return dict(original_data)
    batch = {}
    for slicer in slicers:
        for key in slicer.unslice_inputs:
            if key in data[0]:
                for minibatch in data:
                    if key not in minibatch:
                        raise missing_key(slicer, key, minibatch, verb="unslices")
                try:
                    slices = tuple(minibatch[key] for minibatch in data)
                    batch[key] = slicer._unslice_batch(slices, key=key)
                except Exception as error:
                    add_note(error, f"Raised by {type(slicer).__name__} while it unsliced '{key}'.")
                    raise
    for key, value in data[0].items():
        if key not in batch:
            batch[key] = original_data.get(key, value)
    return batch
