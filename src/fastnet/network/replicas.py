"""Steps spread over several devices by a TensorFlow distribution strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fastnet.backend.convert import map_leaves

__all__ = ["ReplicaSlicer", "Replicas", "fill_batch", "to_global", "trim_batch"]


class Replicas:
    """The devices of the strategy in force, each of which runs the ops on its part of a batch."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.get_strategy()

    @property
    def count(self) -> int:
        """How many devices there are."""
        return int(self.strategy.num_replicas_in_sync)

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Run a step on each device, and put the results together.

        Args:
            step: What to run; takes, and returns, tensors in containers.
            args: Its arguments; a distributed value among them gives each device its own part.

        Returns:
            What `step` returns, with one tensor for those of the devices.
        """
        return to_global(self.strategy.run(step, args=args))

    def distribute(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Cut a batch into a part for each device.

        Args:
            batch: Tensors by key; what is no tensor with an axis goes to every device as it is.

        Returns:
            The same keys, with distributed values.
        """
        count = self.count

        def cut(value: Any) -> Any:
            if not tf.is_tensor(value) or not value.shape.rank:
                return value
            # the first devices get one more where it does not come out even
            size = int(value.shape[0])
            sizes = [size // count + (place < size % count) for place in range(count)]
            pieces = tf.split(value, sizes)
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: pieces[context.replica_id_in_sync_group]
            )

        return map_leaves(dict(batch), cut)  # type: ignore[no-any-return]


def to_global(data: Any) -> Any:
    """Put the values of several devices together.

    Args:
        data: Values in containers, to any depth.

    Returns:
        The same structure. Scalars of the devices become the mean of those that are numbers, other
        tensors are joined along their first axis.
    """
    return map_leaves(data, _combine)


def _combine(value: Any) -> Any:
    if not isinstance(value, tf.distribute.DistributedValues) or isinstance(value, tf.Variable):
        return value
    parts = value.values
    if not tf.is_tensor(parts[0]):
        return parts[0]
    if parts[0].shape.rank != 0:
        return tf.concat(parts, axis=0)
    if not (parts[0].dtype.is_floating or parts[0].dtype.is_integer):
        return parts[0]
    stacked = tf.stack(parts)
    if stacked.dtype.is_floating:
        stacked = tf.boolean_mask(stacked, tf.logical_not(tf.math.is_nan(stacked)))
    return tf.reduce_mean(stacked)


def fill_batch(batch: Mapping[str, Any], amount: int) -> dict[str, Any]:
    """Lengthen a batch, so that each device gets a sample.

    Args:
        batch: Tensors by key.
        amount: How many samples to add; copies of the last ones, mirrored.

    Returns:
        A batch with longer tensors.
    """

    def fill(value: Any) -> Any:
        if not tf.is_tensor(value) or not value.shape.rank:
            return value
        size = int(value.shape[0])
        order = [*range(size), *[size - 1 - place % size for place in range(amount)]]
        return tf.gather(value, order)

    return map_leaves(dict(batch), fill)  # type: ignore[no-any-return]


def trim_batch(batch: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Shorten the tensors of a batch to its first samples.

    Args:
        batch: Tensors by key.
        size: How many samples to keep.

    Returns:
        A batch with shorter tensors.
    """

    def trim(value: Any) -> Any:
        if tf.is_tensor(value) and value.shape.rank and value.shape[0] > size:
            return value[:size]
        return value

    return map_leaves(dict(batch), trim)  # type: ignore[no-any-return]


class ReplicaSlicer:
    """A slicer that cuts, of a distributed value, the part of each device.

    Args:
        slicer: The slicer that does it.
        replicas: The devices.
    """

    def __init__(self, slicer: Any, replicas: Replicas) -> None:
        self._slicer = slicer
        self._replicas = replicas
        self.slice_inputs = slicer.slice_inputs
        self.unslice_inputs = slicer.unslice_inputs

    def slice_batches(self, batches: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Cut the values of `slice_inputs`.

        Args:
            batches: The values, one for each key.

        Returns:
            A tuple for each minibatch, with a distributed piece of each distributed value.

        Raises:
            ValueError: If the parts of the devices fall into different numbers of pieces.
        """
        if not any(isinstance(one, tf.distribute.DistributedValues) for one in batches):
            return list(self._slicer.slice_batches(batches))
        cut = [
            list(self._slicer.slice_batches(tuple(_part(value, place) for value in batches)))
            for place in range(self._replicas.count)
        ]
        if len({len(pieces) for pieces in cut}) > 1:
            raise ValueError(
                f"{type(self._slicer).__name__} cut {self.slice_inputs} into different numbers of "
                f"minibatches on the devices: {[len(pieces) for pieces in cut]}. Cut along an axis "
                "other than the batch's, or give each device as many samples."
            )
        return [
            tuple(
                self._replicas.strategy.experimental_distribute_values_from_function(
                    lambda context, number=number, place=place: cut[
                        context.replica_id_in_sync_group
                    ][number][place]
                )
                for place in range(len(batches))
            )
            for number in range(len(cut[0]))
        ]

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return self._slicer._unslice_batch(slices, key=key)


def _part(value: Any, place: int) -> Any:
    return value.values[place] if isinstance(value, tf.distribute.DistributedValues) else value
