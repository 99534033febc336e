"""The devices that a TensorFlow distribution strategy spreads steps over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from fastnet._nest import leaves_of, map_leaves
from fastnet.backend import joining
from fastnet.backend.model_metadata import name_of
from fastnet.backend.tf.graph import KIND
from fastnet.backend.tf.processes import strategy_name, was_made_under
from fastnet.backend.tf.quiet import quiet
from fastnet.errors import add_note

__all__ = ["Replicas", "combine", "is_distributed", "join_values", "part_of", "to_global"]


class Replicas:
    """The devices of a strategy, each of which runs the ops on its part of a batch.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy

    @classmethod
    def in_force(cls) -> Replicas | None:
        """Return the devices of the strategy in force; None without one, or on a single device."""
        if not tf.distribute.has_strategy() or not tf.distribute.in_cross_replica_context():
            return None
        return cls(tf.distribute.get_strategy())

    @property
    def count(self) -> int:
        """How many devices there are."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def local_count(self) -> int:
        """How many of them are this process's."""
        return len(self.strategy.extended.worker_devices)

    def check(self, ops: Iterable[Any]) -> None:
        """Refuse updates that cannot be made on several devices.

        Args:
            ops: The ops in force; those that know the keys of their losses update models.

        Raises:
            ValueError: If the weights of a model are not the strategy's.
        """
        for op in ops:
            if not hasattr(op, "get_fe_loss_keys") or not hasattr(op, "get_fe_models"):
                continue
            for model in op.get_fe_models():
                name = name_of(model)
                # Keras 2 cannot tell the weights of a Sequential that has none yet
                weights = model.trainable_variables if getattr(model, "built", True) else ()
                if not all(was_made_under(self.strategy, one) for one in weights):
                    strategy = strategy_name(self.strategy)
                    raise ValueError(
                        f"Model '{name}' is to be updated under a {strategy}, but was not made "
                        "under it. Call fastnet.build within its scope, or after "
                        "tf.distribute.experimental_set_strategy."
                    )

    def run(self, step: Callable[..., Mapping[str, Any]], *args: Any) -> list[dict[str, Any]]:
        """Run a step on each device.

        Args:
            step: What to run; returns values by key.
            args: Its arguments: values in containers, to any depth. Each device gets its own part
                of a distributed value, and all of any other.

        Returns:
            For each device what `step` returned, with tensors for variables and arrays.

        Raises:
            Exception: Whatever `step` raises on one of them.
        """
        leaves = leaves_of(args)
        notes: list[str] = []

        def run_part(*parts: Any) -> _Returned:
            advice.close()
            waiting = iter(parts)
            try:
                return _Returned(step(*map_leaves(args, lambda _: next(waiting))))
            except BaseException as error:
                notes.extend(getattr(error, "__notes__", ()))
                raise

        with quiet(logging.WARNING), ExitStack() as advice:
            # before anything runs it advises against steps without a graph
            advice.enter_context(quiet(logging.ERROR))
            try:
                returned = self.strategy.run(run_part, args=tuple(leaves))
            except Exception as error:
                # what fails where the devices meet is raised outside of the op that led there
                for note in dict.fromkeys(notes):
                    if note not in getattr(error, "__notes__", ()):
                        add_note(error, note)
                raise
        return [one.results for one in self.strategy.experimental_local_results(returned)]

    def bundle(self, parts: Sequence[Any]) -> Any:
        """Make a distributed value.

        Args:
            parts: A tensor for each device.

        Returns:
            The value; of what is no tensor, the first device's.
        """
        if not all(map(tf.is_tensor, parts)):
            return parts[0]
        waiting = iter(parts)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: next(waiting)
        )


class _Returned:
    """What a step returned on one device; a strategy has no opinion on what to do with it."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        # a variable has its value on this device only here
        self.results = {key: map_leaves(value, _to_tensor) for key, value in results.items()}


def _to_tensor(value: Any) -> Any:
    tensor = KIND.convert(value)
    return value if tensor is None else tensor


def combine(
    results: Sequence[Mapping[str, Any]], fn: Callable[[Sequence[Any]], Any]
) -> dict[str, Any]:
    """Put the results of several devices together.

    Args:
        results: For each device a value by key.
        fn: Given what stands at one place on each device, gives what is to stand there.

    Returns:
        A value by key.

    Raises:
        ValueError: If a value holds more on one device than on another.
    """
    return joining.combine(results, lambda _, parts: fn(parts), "devices", "a batch")


def join_values(parts: Sequence[Any]) -> Any:
    """Put tensors of several devices together.

    Args:
        parts: A tensor for each device.

    Returns:
        Of scalars the mean, a float, of those that are numbers; other tensors are joined along
        their first axis. Of what is no tensor, or of scalars without a mean, the first device's.
    """
    first = parts[0]
    if not all(map(tf.is_tensor, parts)):
        return first
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    if first.shape.rank != 0:
        return tf.concat(parts, axis=0)
    if first.dtype.is_integer or first.dtype.is_bool:
        parts = [tf.cast(part, tf.float64) for part in parts]
    elif not first.dtype.is_floating:
        return first
    scalars = tf.stack(parts)
    missing = tf.math.is_nan(scalars)
    total = tf.reduce_sum(tf.where(missing, tf.zeros_like(scalars), scalars))
    return total / tf.reduce_sum(tf.cast(tf.logical_not(missing), scalars.dtype))


def is_distributed(value: Any) -> bool:
    """Return whether a value has a part for each device."""
    return isinstance(value, tf.distribute.DistributedValues) and not isinstance(value, tf.Variable)


def part_of(value: Any, place: int) -> Any:
    """Return a device's part of a distributed value, or all of any other.

    Args:
        value: The value.
        place: The place of the device among those of this process.
    """
    return value.values[place] if is_distributed(value) else value


def to_global(data: Any) -> Any:
    """Put the parts of distributed values together.

    Args:
        data: Values in containers, to any depth.

    Returns:
        The same structure without distributed values.
    """
    return map_leaves(data, _to_global)


def _to_global(value: Any) -> Any:
    if not is_distributed(value):
        return value
    if isinstance(value, tf.types.experimental.distributed.Mirrored):
        return value.values[0]
    return join_values(value.values)
