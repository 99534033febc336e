"""Whole batches cut up for several devices, and their results put together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from fastnet._nest import leaves_of, map_leaves
from fastnet.network.tf.replicas import Replicas, part_of, to_global

__all__ = ["spread"]

Step = Callable[[Mapping[str, Any]], dict[str, Any]]


def spread(
    step: Step,
    batch: Mapping[str, Any],
    replicas: Replicas,
    keys: Collection[str],
    slicers: Collection[Any],
) -> dict[str, Any]:
    """Run a step on a batch that is whole, each device on a part of it.

    Where there are fewer samples than devices, the devices that are left over run copies, and their
    results are dropped.

    Args:
        step: What to run.
        batch: The batch, or a minibatch that slicers have cut of one.
        replicas: The devices.
        keys: The keys that ops read; all others are left as they are.
        slicers: What cut the minibatch. If there are any, the step leaves the results of the
            devices apart.

    Returns:
        The batch's own entries and, over them, the outputs, joined.

    Raises:
        AssertionError: If the values that ops read differ in their numbers of samples.
    """
    read = {key: batch[key] for key in sorted(keys) if key in batch}
    lengths = {key: _lengths(value) for key, value in read.items()}
    found = {length for each in lengths.values() for length in each}
    if not found:
        return step(batch)
    if slicers and (len(found) > 1 or any(_drops_batch(one, batch) for one in slicers)):
        # nothing to spread along: each device does all of it, and the first is heard
        return {key: map_leaves(value, _first) for key, value in step(batch).items()}
    if len(found) > 1:
        raise AssertionError(
            f"A batch is to be spread over {replicas.local_count} devices, but the first axes of "
            f"what ops read differ: {lengths}. Let each have a length of the number of samples."
        )
    size = found.pop()
    bounds = _bounds(size, replicas.local_count)

    def cut(value: Any) -> Any:
        if not _has_rows(value):
            return value
        return replicas.bundle([_rows(value, start, stop) for start, stop in bounds])

    parts = {key: map_leaves(value, cut) for key, value in read.items()}
    results = step({**batch, **parts})
    joined = {
        key: batch[key] if value is parts.get(key, step) else to_global(value)
        for key, value in results.items()
    }
    if 0 < size < len(bounds):
        return {
            key: map_leaves(value, lambda leaf: _trim(leaf, size, len(bounds)))
            if value is not batch.get(key, step)
            else value
            for key, value in joined.items()
        }
    return joined


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Return each device's first sample and the one after its last; the first devices have more."""
    if 0 < size < count:
        # there and back again, as in a mirror
        order = [*range(size), *reversed(range(size))]
        firsts = [order[place % len(order)] for place in range(count)]
        return [(first, first + 1) for first in firsts]
    stops = [place * (size // count) + min(place, size % count) for place in range(count + 1)]
    return list(itertools.pairwise(stops))


def _has_rows(value: Any) -> bool:
    return bool(tf.is_tensor(value) and value.shape.rank)


def _lengths(value: Any) -> list[int]:
    return sorted({int(leaf.shape[0]) for leaf in leaves_of(value) if _has_rows(leaf)})


def _rows(value: Any, start: int, stop: int) -> Any:
    if not isinstance(value, tf.SparseTensor):
        return value[start:stop]
    rest = value.shape[1:]
    return tf.sparse.slice(value, [start, *[0] * len(rest)], [stop - start, *rest])


def _trim(value: Any, size: int, count: int) -> Any:
    """Leave out what devices made of copies: each made as much of its one sample."""
    if not _has_rows(value):
        return value
    length = int(value.shape[0])
    return _rows(value, 0, size if length % count else length // count * size)


def _first(value: Any) -> Any:
    return part_of(value, 0)


def _drops_batch(slicer: Any, minibatch: Mapping[str, Any]) -> bool:
    """Return whether a slicer has cut along the axis of the batch, and taken it out."""
    if not slicer.slice_inputs:
        return False
    if 0 in getattr(slicer, "auto_squeeze", ()):
        return True
    axis = getattr(slicer, "axis", None)
    pieces = [minibatch[key] for key in slicer.slice_inputs if key in minibatch]
    return any(axis in (0, -1 - len(piece.shape)) for piece in pieces if hasattr(piece, "shape"))
