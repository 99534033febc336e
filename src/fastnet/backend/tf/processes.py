"""The strategies and the workers of a `tf.distribute` program."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from fastnet.backend.joining import TensorKind, join_results
from fastnet.backend.tf._keras_internals import shared_seeds
from fastnet.errors import shorten
from fastnet.util.launchers import TF_TASKS, tf_workers

__all__ = [
    "barrier",
    "collect",
    "describe_parallelism",
    "exchange",
    "gather",
    "is_of_several_workers",
    "note_failure",
    "note_model",
    "rank",
    "seed",
    "start",
    "stop",
    "strategy_name",
    "strategy_of",
    "was_made_under",
    "world_size",
]

_BACKENDS = {
    None: tf.distribute.experimental.CommunicationImplementation.AUTO,
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}

# The strategy that `start` has made. TensorFlow has one cluster for as long as a process lives.
_made: tf.distribute.Strategy | None = None
# The strategy of several workers that was last in scope or built a model.
_noted: ref[tf.distribute.Strategy] | None = None
# The strategies that models were built under, which may have no variables yet.
_built_under: WeakKeyDictionary[Any, ref[tf.distribute.Strategy]] = WeakKeyDictionary()


def start(backend: str | None = None, device: Any = None, timeout: float | None = None) -> None:
    """Join the workers of `TF_CONFIG` under a strategy that is the default from now on."""
    global _made
    if device is not None:
        raise ValueError(
            f"fastnet.distributed got the device {shorten(device)}, but a TensorFlow worker uses "
            "all devices that it sees. Choose them by tf.config.set_visible_devices, or by "
            "CUDA_VISIBLE_DEVICES."
        )
    if backend not in _BACKENDS:
        raise ValueError(
            f"fastnet.distributed got the backend {shorten(backend)}, but TensorFlow's are "
            "'auto', 'nccl' and 'ring'."
        )
    if world_size() > 1 or tf_workers() < 2:
        return
    if tf.distribute.has_strategy():
        raise ValueError(
            f"TF_CONFIG names {tf_workers()} workers, but the program is in the scope of a "
            f"{strategy_name(tf.distribute.get_strategy())}, which is of one process. Leave it "
            "before fastnet.distributed.init, or make a tf.distribute.MultiWorkerMirroredStrategy."
        )
    if _made is None:
        options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=timeout, implementation=_BACKENDS[backend]
        )
        _made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    tf.distribute.experimental_set_strategy(_made)


def stop() -> None:
    """Leave the strategy that `start` has made."""
    global _noted
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is _made:
        tf.distribute.experimental_set_strategy(None)
        _noted = None


def is_of_several_workers(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy distributes steps over several processes."""
    global _noted
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    if len(_tasks(strategy)) < 2:
        return False
    _noted = ref(strategy)
    return True


def strategy_name(strategy: tf.distribute.Strategy) -> str:
    """Return the public name of a strategy's class."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return "MultiWorkerMirroredStrategy"
    return type(strategy).__name__


def note_model(model: Any) -> None:
    """Note the strategy that a model is built under."""
    if tf.distribute.has_strategy():
        _built_under[model] = ref(tf.distribute.get_strategy())


def strategy_of(model: Any) -> tf.distribute.Strategy | None:
    """Return the strategy that a model was built under, or None."""
    noted = _built_under.get(model)
    if noted is not None and noted() is not None:
        return noted()
    for variable in model.weights if getattr(model, "built", True) else ():
        strategy = getattr(_tf_variable(variable), "distribute_strategy", None)
        # Other variables have the default strategy.
        if strategy is not None and strategy.extended.variable_created_in_scope(
            _tf_variable(variable)
        ):
            return strategy if strategy.num_replicas_in_sync > 1 else None
    return None


def was_made_under(strategy: tf.distribute.Strategy, variable: Any) -> bool:
    """Return whether a variable was created in the scope of a strategy."""
    return bool(strategy.extended.variable_created_in_scope(_tf_variable(variable)))


def describe_parallelism(model: Any) -> str | None:
    """Describe the strategy of a model, and the number of its devices and processes."""
    strategy = strategy_of(model)
    if strategy is None:
        return None
    count = int(strategy.num_replicas_in_sync)
    text = f"by {strategy_name(strategy)} over {count} device{'' if count == 1 else 's'}"
    return f"{text} of {world_size()} processes" if is_of_several_workers(strategy) else text


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


def barrier() -> None:
    """Wait until all workers have called this."""
    exchange(None)


def note_failure(error: BaseException) -> None:
    """Do nothing: TensorFlow ends the collective calls of the others when this process ends."""


def seed(number: int) -> None:
    """Seed the shared generators of TensorFlow and Keras; layers have their own."""
    tf.random.set_seed(number)
    tf.random.get_global_generator().reset_from_seed(number)
    shared = shared_seeds()
    if shared is not None:
        shared.assign([number, 0])


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Combine the results of all workers, as `fastnet.distributed.gather` documents."""
    results, sizes = zip(*exchange((dict(result), samples)), strict=True)
    return join_results(results, sizes, _KIND)


def exchange(value: Any) -> list[Any]:
    """Return the values of all workers."""
    # Collectives take integers of 4 bytes.
    data = pickle.dumps(value)
    padded = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
    lengths = np.cumsum(_gather(np.array([len(padded)], np.int32)))
    parts = np.split(_gather(padded), lengths[:-1])
    return [pickle.loads(part.tobytes()) for part in parts]


def collect(value: Any) -> list[Any] | None:
    """Return the values of all workers on rank 0, and None on the others."""
    values = exchange(value)
    return values if rank() == 0 else None


def _gather(own: np.ndarray) -> np.ndarray:
    """Concatenate the arrays of all workers."""
    strategy: Any = _strategy_of_workers()
    local_count = len(strategy.extended.worker_devices)

    def part(context: Any) -> tf.Tensor:
        # The first device of a worker stands for it.
        is_first = context.replica_id_in_sync_group % local_count == 0
        return tf.constant(own if is_first else own[:0])

    parts = strategy.experimental_distribute_values_from_function(part)
    gathered: np.ndarray = strategy.gather(parts, axis=0).numpy()
    return gathered


def _strategy_of_workers() -> Any:
    """Return the strategy of several workers in scope, or the last one; None in one process."""
    if tf.distribute.has_strategy():
        is_of_several_workers(tf.distribute.get_strategy())
    return None if _noted is None else _noted()


def _tasks(strategy: tf.distribute.Strategy) -> list[tuple[str, int]]:
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return [(name, index) for name in TF_TASKS for index in range(len(jobs.get(name, ())))]


def _tf_variable(variable: Any) -> Any:
    # Keras 3 has variables of its own around those of TensorFlow.
    return variable if isinstance(variable, tf.Variable) else variable.value


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


_KIND = TensorKind(
    is_tensor=tf.is_tensor,
    has_rows=lambda tensor: bool(len(tensor.shape)),
    is_number=_is_number,
    concatenate=_concatenate,
    mean_like=_mean_like,
    errors=(ValueError, tf.errors.InvalidArgumentError),
)
