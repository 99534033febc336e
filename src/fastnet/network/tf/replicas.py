"""Steps on several devices: splitting batches over the replicas of a strategy, joining results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet._nest import leaves_of, map_leaves
from fastnet.backend.model_metadata import name_of
from fastnet.backend.tf import processes
from fastnet.backend.tf.gradients import named_trainable_parameters
from fastnet.backend.tf.processes import strategy_name, strategy_of
from fastnet.backend.tf.tensor_adapter import TENSOR_ADAPTER
from fastnet.distributed import combine
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.same_plans import require_same_plans
from fastnet.op.tensorop.foreign_op import as_tensor_op
from fastnet.op.tensorop.model.ema import EMA
from fastnet.types import Model, RunStep, State
from fastnet.util.launchers import tf_workers


class Replicas:
    """The replicas of a strategy, each of which runs the ops on its part of a batch."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy

    @classmethod
    def of(cls, models: Iterable[Model]) -> Replicas | None:
        """Return the replicas of the strategy in scope, or else of that of the models."""
        if tf.distribute.has_strategy():
            # In a replica of the program, the network runs on the device of the replica.
            if not tf.distribute.in_cross_replica_context():
                return None
            return cls(tf.distribute.get_strategy())
        strategies = filter(None, map(strategy_of, models))
        strategy = next(strategies, None)
        return None if strategy is None else cls(strategy)

    @property
    def count(self) -> int:
        """The number of replicas of all processes."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def has_workers(self) -> bool:
        """Whether the replicas run in several processes."""
        return processes.is_of_several_workers(self.strategy)

    def check(self, plan: ExecutionPlan) -> None:
        """Raise a ValueError for a model to be updated whose weights are not the strategy's."""
        if self.count == 1 or not plan.takes_gradients:
            return
        for op in plan.ops:
            if isinstance(op, EMA):
                self._check_average(op)
            adapted = as_tensor_op(op)
            for model in adapted.get_fe_models() if adapted.updates_models else ():
                if strategy_of(model) is not self.strategy:
                    raise ValueError(
                        f"Model '{name_of(model)}' is to be updated under a "
                        f"{strategy_name(self.strategy)}, but was not built under it. Call "
                        "fastnet.build within `with strategy.scope():`."
                    )

    def _check_average(self, op: EMA) -> None:
        is_updated = strategy_of(op.model) is self.strategy
        if is_updated and strategy_of(op.averaged) is not self.strategy:
            raise ValueError(
                f"EMA of '{name_of(op.model)}' is to average weights under a "
                f"{strategy_name(self.strategy)}, but was not made under it. Make the EMA within "
                "`with strategy.scope():`."
            )

    def run(self, step: Callable[..., Mapping[str, Any]], batch: dict[str, Any]) -> dict[str, Any]:
        """Run a step on each replica of this process, and join the results.

        A replica gets its own part of a distributed value, and all of any other.
        """
        leaves = leaves_of(batch)
        distributed = [index for index, leaf in enumerate(leaves) if is_distributed(leaf)]

        def run_part(*parts: Any) -> _Returned:
            remaining = iter(parts)
            results = step(map_leaves(batch, lambda _: next(remaining)))
            return _Returned(results, _sample_count([parts[index] for index in distributed]))

        returned = self.strategy.run(run_part, args=tuple(leaves))
        replicas = self.strategy.experimental_local_results(returned)
        weights = [replica.sample_count for replica in replicas]
        return combine(
            [replica.results for replica in replicas],
            lambda _, parts: _join_parts(parts, weights),
            "devices",
            "a batch",
        )

    def split(
        self, step: RunStep, keys: Collection[str], slicers: Sequence[Any], trains: bool
    ) -> RunStep:
        """Return a step that splits plain batches over the replicas of this process."""
        count = len(self.strategy.extended.worker_devices)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            read = {key: batch[key] for key in sorted(keys) if key in batch}
            leaves = leaves_of(read)
            if count == 1 or any(map(is_distributed, leaves)):
                return step(batch)
            for key, value in read.items():
                if any(leaf.shape[0] is None for leaf in leaves_of(value) if _has_rows(leaf)):
                    raise ValueError(
                        f"A batch is split over {count} devices, but the number of samples of "
                        f"'{key}' is unknown in the tf.function around the step. Give its input a "
                        "shape with a batch size, or call run_step outside of it."
                    )
            lengths = {int(leaf.shape[0]) for leaf in leaves if _has_rows(leaf)}
            if not lengths:
                return step(batch)
            if len(lengths) > 1 or any(_drops_batch_axis(slicer, batch) for slicer in slicers):
                raise ValueError(
                    f"A batch is split over {count} devices along the first axes of what ops read, "
                    f"but these are not the samples, or their lengths differ: {_lengths(read)}. "
                    "Let each tensor have a first axis of the length of the batch, and let slicers "
                    "keep it."
                )
            (size,) = lengths
            if trains and size % count:
                raise ValueError(
                    f"A batch of {size} samples cannot be split evenly over {count} devices, whose "
                    "gradients have equal weights. Batch the dataset with drop_remainder=True, or "
                    "iterate over strategy.experimental_distribute_dataset(dataset)."
                )
            # The bounds are rounded up, so that parts differ by at most one sample.
            starts = [-(-index * size // count) for index in range(count + 1)]
            bounds = list(pairwise(starts))

            def distribute(value: Any) -> Any:
                if not _has_rows(value):
                    return value
                remaining = iter([_rows(value, start, stop) for start, stop in bounds])
                return self.strategy.experimental_distribute_values_from_function(
                    lambda context: next(remaining)
                )

            parts = {key: map_leaves(value, distribute) for key, value in read.items()}
            results = step({**batch, **parts})
            # Values that ops have not replaced are returned as they were.
            return {
                key: batch[key] if key in parts and value is parts[key] else value
                for key, value in results.items()
            }

        return run


def compare_workers(plan: ExecutionPlan, state: State, replicas: Replicas | None) -> None:
    """Compare the plans of all workers; raise if one of several would train alone."""
    if replicas is None and tf_workers() > 1:
        raise ValueError(
            f"TF_CONFIG names {tf_workers()} workers, but the models were not built under a "
            "strategy: each would train by itself. Put `with fastnet.distributed.run():` around "
            "the program, or call fastnet.build within the scope of a "
            "tf.distribute.MultiWorkerMirroredStrategy."
        )
    if replicas is None or not replicas.has_workers:
        return
    require_same_plans(processes, plan, state, plan.models, named_trainable_parameters)


class _Returned:
    """The results of a replica and its number of samples; strategies do not look inside."""

    def __init__(self, results: Mapping[str, Any], sample_count: Any) -> None:
        # A variable has the value of its replica only here.
        self.results = {key: map_leaves(value, _to_tensor) for key, value in results.items()}
        self.sample_count = sample_count


def is_distributed(value: Any) -> bool:
    """Return whether a value has a part for each replica."""
    return isinstance(value, tf.distribute.DistributedValues) and not isinstance(value, tf.Variable)


def join_distributed(data: Any) -> Any:
    """Return a nest with the parts of each distributed value joined."""
    return map_leaves(data, _join_value) if any(map(is_distributed, leaves_of(data))) else data


def _join_value(value: Any) -> Any:
    if not is_distributed(value):
        return value
    if isinstance(value, tf.types.experimental.distributed.Mirrored):
        return value.values[0]
    return _join_parts(value.values, [1] * len(value.values))


def _join_parts(parts: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Concatenate tensors of the replicas; of scalars return the mean, weighted by samples."""
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
    counts = tf.cast(tf.stack(weights), scalars.dtype)
    # A mean of no samples is NaN.
    products = tf.where(tf.equal(counts, 0), tf.zeros_like(scalars), scalars * counts)
    return tf.reduce_sum(products) / tf.reduce_sum(counts)


def _to_tensor(value: Any) -> Any:
    tensor = TENSOR_ADAPTER.convert(value)
    return value if tensor is None else tensor


def _has_rows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind != "O"
    return bool(tf.is_tensor(value) and value.shape.rank)


def _lengths(batch: Mapping[str, Any]) -> dict[str, list[int]]:
    return {
        key: sorted({int(leaf.shape[0]) for leaf in filter(_has_rows, leaves_of(value))})
        for key, value in batch.items()
    }


def _sample_count(parts: Sequence[Any]) -> Any:
    """Return the number of samples in the first part that has rows; 1 if none has."""
    for part in parts:
        if isinstance(part, tf.RaggedTensor):
            return part.nrows()
        if hasattr(part, "shape") and tf.TensorShape(part.shape).rank != 0:
            return tf.shape(part, tf.int64)[0]
    return 1


def _rows(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, np.ndarray):
        return tf.convert_to_tensor(value[start:stop])
    if not isinstance(value, tf.SparseTensor):
        return value[start:stop]
    other_lengths = value.shape[1:]
    starts = [start, *[0] * len(other_lengths)]
    return tf.sparse.slice(value, starts, [stop - start, *other_lengths])


def _drops_batch_axis(slicer: Any, minibatch: Mapping[str, Any]) -> bool:
    """Return whether a slicer has removed the first axis of its minibatches."""
    if not slicer.slice_inputs:
        return False
    if 0 in getattr(slicer, "auto_squeeze", ()):
        return True
    axis = getattr(slicer, "axis", None)
    pieces = [minibatch[key] for key in slicer.slice_inputs if key in minibatch]
    return any(axis in (0, -1 - len(piece.shape)) for piece in pieces if hasattr(piece, "shape"))
