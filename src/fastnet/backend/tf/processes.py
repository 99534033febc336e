"""The strategies and the workers of a `tf.distribute` program."""

from __future__ import annotations

import pickle
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from fastnet.distributed import TensorOps
from fastnet.types import Model
from fastnet.util.launchers import TF_TASKS, tf_workers

# The strategy that `init` has made. TensorFlow has one cluster for as long as a process lives.
_init_strategy: tf.distribute.Strategy | None = None
# The strategy of several workers that was last in scope.
_last_strategy: ref[tf.distribute.Strategy] | None = None
# The strategies that models were built under, which may have no variables yet.
_built_under: WeakKeyDictionary[Any, ref[tf.distribute.Strategy]] = WeakKeyDictionary()


def init(backend: str | None = None, timeout: float | None = None) -> None:
    """Join the workers of `TF_CONFIG` under a strategy that is the default from now on."""
    global _init_strategy
    if world_size() > 1 or tf_workers() < 2:
        return
    if _init_strategy is None:
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=timeout, implementation=kinds((backend or "auto").upper())
        )
        _init_strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    tf.distribute.experimental_set_strategy(_init_strategy)


def shutdown() -> None:
    """Leave the strategy that `init` has made."""
    global _last_strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is _init_strategy:
        tf.distribute.experimental_set_strategy(None)
        _last_strategy = None


def is_of_several_workers(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy distributes steps over several processes."""
    is_for_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return is_for_workers and len(_tasks(strategy)) > 1


def strategy_name(strategy: tf.distribute.Strategy) -> str:
    """Return the public name of a strategy's class."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return "MultiWorkerMirroredStrategy"
    return type(strategy).__name__


def note_model(model: Model) -> None:
    """Note the strategy that a model is built under."""
    _strategy_of_workers()
    if tf.distribute.has_strategy():
        _built_under[model] = ref(tf.distribute.get_strategy())


def strategy_of(model: Model) -> tf.distribute.Strategy | None:
    """Return the strategy of several replicas that has a model's weights, or None.

    Without weights yet, it is the strategy that the model was built under.
    """
    weights = model.weights if getattr(model, "built", True) else []
    if weights:
        # Keras 3 has variables of its own around those of TensorFlow.
        variable = weights[0] if isinstance(weights[0], tf.Variable) else weights[0].value
        strategy = getattr(variable, "distribute_strategy", None)
    else:
        strategy = _built_under.get(model, lambda: None)()
    return None if strategy is None or strategy.num_replicas_in_sync == 1 else strategy


def describe_parallelism(model: Model) -> str | None:
    """Describe the strategy of a model, and the number of its devices."""
    strategy = strategy_of(model)
    if strategy is None:
        return None
    return f"by {strategy_name(strategy)} over {strategy.num_replicas_in_sync} devices"


def rank() -> int:
    """Return the rank of this worker; the chief is 0."""
    strategy = _strategy_of_workers()
    if strategy is None:
        return 0
    resolver = strategy.cluster_resolver
    return _tasks(strategy).index((resolver.task_type, resolver.task_id))


def world_size() -> int:
    """Return the number of workers."""
    strategy = _strategy_of_workers()
    return 1 if strategy is None else len(_tasks(strategy))


def explain_failure(error: BaseException) -> None:
    """Do nothing: TensorFlow fails the collective calls of other workers when this one ends."""


def all_gather_object(value: Any) -> list[Any]:
    """Return the values of all workers."""
    # Collectives take integers of 4 bytes.
    data = pickle.dumps(value)
    padded = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
    lengths = np.cumsum(_gather(np.array([len(padded)], np.int32)))
    parts = np.split(_gather(padded), lengths[:-1])
    return [pickle.loads(part.tobytes()) for part in parts]


def gather_object(value: Any) -> list[Any] | None:
    """Return the values of all workers on rank 0, and None on the others."""
    values = all_gather_object(value)
    return values if rank() == 0 else None


def _gather(array: np.ndarray) -> np.ndarray:
    """Concatenate the arrays of all workers."""
    strategy: Any = _strategy_of_workers()
    local_count = len(strategy.extended.worker_devices)

    def part(context: Any) -> tf.Tensor:
        # Only the first device of a worker contributes its array.
        is_first = context.replica_id_in_sync_group % local_count == 0
        return tf.constant(array if is_first else array[:0])

    parts = strategy.experimental_distribute_values_from_function(part)
    gathered: np.ndarray = strategy.gather(parts, axis=0).numpy()
    return gathered


def _strategy_of_workers() -> Any:
    """Return the strategy of several workers in scope, or the last one; None in one process."""
    global _last_strategy
    if is_of_several_workers(tf.distribute.get_strategy()):
        _last_strategy = ref(tf.distribute.get_strategy())
    return None if _last_strategy is None else _last_strategy()


def _tasks(strategy: tf.distribute.Strategy) -> list[tuple[str, int]]:
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return [(name, index) for name in TF_TASKS for index in range(len(jobs.get(name, ())))]


def _is_number(tensor: tf.Tensor) -> bool:
    dtype = tensor.dtype
    is_real = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return bool(is_real and tensor.shape.rank == 0)


def _concatenate(tensors: list[Any]) -> Any:
    if isinstance(tensors[0], tf.SparseTensor):
        return tf.sparse.concat(0, tensors)
    return tf.concat(tensors, axis=0)


def _mean_like(mean: float, tensor: tf.Tensor) -> tf.Tensor:
    return tf.constant(mean, tensor.dtype if tensor.dtype.is_floating else tf.float64)


TENSOR_OPS = TensorOps(
    is_tensor=tf.is_tensor,
    is_number=_is_number,
    concatenate=_concatenate,
    mean_like=_mean_like,
    errors=(ValueError, tf.errors.InvalidArgumentError),
)
