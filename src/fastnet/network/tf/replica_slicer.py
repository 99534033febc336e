"""Slicers that cut the part of each device by itself."""

from __future__ import annotations

from typing import Any

from fastnet.network.tf.replicas import Replicas, is_distributed, join_values, part_of
from fastnet.op.copies import shallow_copy

__all__ = ["ReplicaSlicer"]


class ReplicaSlicer:
    """A slicer that cuts, and joins, the part that each device has of a distributed value.

    Args:
        slicer: The slicer that does it.
        replicas: The devices.
    """

    def __init__(self, slicer: Any, replicas: Replicas) -> None:
        self.slice_inputs = slicer.slice_inputs
        self.unslice_inputs = slicer.unslice_inputs
        self._slicer = slicer
        self._replicas = replicas
        # one for each device: a slicer may remember what it cut
        self._twins: list[Any] = []

    @classmethod
    def around(cls, slicer: Any, replicas: Replicas) -> ReplicaSlicer:
        """Wrap a slicer so that errors still call it by its name.

        Args:
            slicer: The slicer.
            replicas: The devices.
        """
        named: type[ReplicaSlicer] = type(type(slicer).__name__, (cls,), {})
        return named(slicer, replicas)

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Cut the values of `slice_inputs`.

        Args:
            batches: The values, one for each key.

        Returns:
            A tuple for each minibatch, with a distributed piece of each distributed value.

        Raises:
            ValueError: If the parts of the devices fall into different numbers of pieces.
        """
        if not any(map(is_distributed, batches)):
            self._twins = []
            return list(self._slicer.slice_batches(batches))
        count = next(len(value.values) for value in batches if is_distributed(value))
        self._twins = [shallow_copy(self._slicer) for _ in range(count)]
        cut = [
            list(twin.slice_batches(tuple(part_of(value, place) for value in batches)))
            for place, twin in enumerate(self._twins)
        ]
        if len({len(pieces) for pieces in cut}) > 1:
            raise ValueError(
                f"{type(self._slicer).__name__} cut {self.slice_inputs} into different numbers of "
                f"minibatches on the devices: {[len(pieces) for pieces in cut]}. Cut along an axis "
                "other than the batch's, or give each device as many samples."
            )
        if hasattr(self._slicer, "minibatch_size"):
            self._slicer.minibatch_size = len(cut[0])
        return [
            tuple(
                self._replicas.bundle(parts) if is_distributed(value) else parts[0]
                for value, parts in zip(batches, zip(*pieces, strict=True), strict=True)
            )
            for pieces in zip(*cut, strict=True)
        ]

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        distributed = [value for value in slices if is_distributed(value)]
        if not distributed:
            return self._slicer._unslice_batch(slices, key=key)
        count = len(distributed[0].values)
        slicers = self._twins or [self._slicer] * count
        return join_values(
            [
                slicer._unslice_batch(tuple(part_of(value, place) for value in slices), key=key)
                for place, slicer in enumerate(slicers)
            ]
        )
