"""The workers of TensorFlow that train together: started, waited for, and their results joined."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import tensorflow as tf

from fastnet.backend.joining import TensorKind, join_results
from fastnet.backend.tf._internals import messages
from fastnet.backend.tf._keras_internals import shared_seeds
from fastnet.backend.tf.workers import Workers
from fastnet.errors import RankError, shorten
from fastnet.util.launchers import TF_TASKS, tf_workers

__all__ = [
    "barrier",
    "collect",
    "describe_parallelism",
    "exchange",
    "gather",
    "is_of_several_workers",
    "is_started",
    "meet",
    "note",
    "rank",
    "seed",
    "start",
    "stop",
    "strategy_name",
    "the_workers",
    "together",
    "was_made_under",
    "watch",
    "world_size",
]

_BACKENDS = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}

# the strategy that `start` has made: TensorFlow has one cluster for as long as a process lives
_made: tf.distribute.Strategy | None = None
# the one that models were last made or run under, which a program may have left again
_noted: ref[Any] | None = None
# of each strategy, as long as there is one: how far its workers have come with each other
_workers: Workers | None = None


def start(backend: str | None = None, device: Any = None, timeout: float | None = None) -> None:
    """Join the other workers of `TF_CONFIG`, under a strategy that is the process's from now on.

    Args:
        backend: What to communicate by: "ring" (gRPC) or "nccl"; None for what TensorFlow chooses.
        device: Not to be chosen here: a worker has all devices of its machine that it sees.
        timeout: After how many seconds a collective gives up. None for never, unless a worker is
            gone.

    Raises:
        ValueError: If there is no such backend, TensorFlow has run something before, or the
            program has a strategy of another kind.
    """
    global _made
    if device is not None:
        raise ValueError(
            f"fastnet.distributed got the device {shorten(device)}, but a TensorFlow worker uses "
            "all devices that it sees. Choose them by tf.config.set_visible_devices, or by "
            "CUDA_VISIBLE_DEVICES."
        )
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(
            f"fastnet.distributed got the backend {shorten(backend)}, but TensorFlow's are "
            f"{sorted(_BACKENDS)}."
        )
    if the_workers() is not None or tf_workers() < 2:
        return
    if tf.distribute.has_strategy():
        strategy = strategy_name(tf.distribute.get_strategy())
        raise ValueError(
            f"TF_CONFIG names {tf_workers()} workers, but the program is under a {strategy}, which "
            "is of one process. Leave it before you call fastnet.distributed.init, or make it a "
            "tf.distribute.MultiWorkerMirroredStrategy."
        )
    if _made is None:
        options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=timeout, implementation=_BACKENDS[backend or "auto"]
        )
        try:
            _made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        except RuntimeError as error:
            raise ValueError(
                f"The workers of TF_CONFIG cannot come together ({error}). Call "
                "fastnet.distributed.init before TensorFlow does anything else: before a tensor, a "
                "model or a dataset is made."
            ) from error
    tf.distribute.experimental_set_strategy(_made)
    note(_made)


def note(strategy: tf.distribute.Strategy) -> Workers | None:
    """Take down under which strategy models are made and run.

    Args:
        strategy: The strategy.

    Returns:
        Its workers; None if there is only one.
    """
    global _noted, _workers
    if _noted is not None and _noted() is strategy:
        return _workers
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict()
    tasks = [
        f"/job:{name}/replica:0/task:{place}"
        for name in TF_TASKS
        for place in range(len(jobs.get(name, ())))
    ]
    own = f"/job:{resolver.task_type}/replica:0/task:{resolver.task_id}"
    if own not in tasks or len(tasks) < 2:
        return None
    # however many strategies there are, they have one cluster
    if _workers is None:
        _workers = Workers(tasks.index(own), tasks, messages(), _meet_by_collective)
    _noted = ref(strategy)
    return _workers


def is_of_several_workers(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy spreads steps over several processes.

    Args:
        strategy: The strategy.
    """
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and note(strategy) is not None
    )


def strategy_name(strategy: tf.distribute.Strategy) -> str:
    """Return the name by which programs make a strategy of its kind.

    Args:
        strategy: The strategy.
    """
    # the class's own name is another one
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return "MultiWorkerMirroredStrategy"
    return type(strategy).__name__


def was_made_under(strategy: tf.distribute.Strategy, variable: Any) -> bool:
    """Return whether a variable is a strategy's.

    Args:
        strategy: The strategy.
        variable: A variable of TensorFlow or of Keras.
    """
    # Keras 3 has variables of its own around those of TensorFlow
    inner = variable if isinstance(variable, tf.Variable) else variable.value
    return bool(strategy.extended.variable_created_in_scope(inner))


def describe_parallelism(model: Any) -> str | None:
    """Say how a model is spread.

    Args:
        model: The model.

    Returns:
        By which strategy, and over how many devices and processes; None for one of no weights, or
        whose weights are not those of a strategy in force.
    """
    if not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    weights = model.weights if getattr(model, "built", True) else ()
    if not weights or not all(was_made_under(strategy, one) for one in weights):
        return None
    count = int(strategy.num_replicas_in_sync)
    told = f"by {strategy_name(strategy)} over {count} device{'' if count == 1 else 's'}"
    workers = note(strategy)
    return told if workers is None else f"{told} of {world_size()} processes"


def the_workers() -> Workers | None:
    """Return the workers of the strategy in force, or of the latest; None for one process."""
    if tf.distribute.has_strategy():
        note(tf.distribute.get_strategy())
    return None if _noted is None or _noted() is None else _workers


def is_started() -> bool:
    """Return whether this process has come together with others, whoever has seen to it."""
    return the_workers() is not None


def rank() -> int:
    """Return the place of this process among all, from 0: that of the chief."""
    workers = the_workers()
    return 0 if workers is None else workers.rank


def world_size() -> int:
    """Return how many processes there are."""
    workers = the_workers()
    return 1 if workers is None else workers.count


def barrier() -> None:
    """Wait until all processes have come here.

    Raises:
        RankError: If one of them is gone, or at another place of the program.
    """
    workers = the_workers()
    if workers is not None:
        workers.meet("a barrier")


def meet(call: str) -> None:
    """Wait until all processes are in the same function of fastnet's, with the same arguments.

    Args:
        call: The function, with the arguments that are to be the same, as a program writes it.

    Raises:
        RankError: If one of them is gone, or at another place of the program.
    """
    workers = the_workers()
    if workers is not None:
        workers.meet(call)


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Put the results of all processes together, on each of them.

    Args:
        result: Values by key.
        samples: Of how many samples these are, or None for what can be seen of that.

    Returns:
        A value by key: see `fastnet.distributed.gather`.

    Raises:
        ValueError: If the processes have different keys, or one of them more values under a key.
        RankError: If one of them is gone, or at another place of the program.
    """
    if world_size() == 1:
        return dict(result)
    meet("gather")
    results, sizes = zip(*exchange((dict(result), samples)), strict=True)
    return join_results(results, sizes, _KIND)


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


def exchange(value: Any) -> list[Any]:
    """Give a value to all processes.

    Args:
        value: What can be pickled.

    Returns:
        The values of all of them, in their order.

    Raises:
        RankError: If one of them is gone, or at another place of the program.
    """
    workers = the_workers()
    if workers is None:
        return [value]
    data = pickle.dumps(value)
    # before the collective, which would wait for ever for one that does not come
    sizes = [int(word) for word in workers.meet("an exchange of values", str(len(data)))]
    # whole numbers are what collectives take; several devices of a process count once
    padded = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
    strategy = _noted() if _noted is not None else None
    assert strategy is not None
    nothing = padded[:0]

    def own(context: Any) -> tf.Tensor:
        first = context.replica_id_in_sync_group % local_count == 0
        return tf.constant(padded if first else nothing)

    local_count = len(strategy.extended.worker_devices)
    parts = strategy.experimental_distribute_values_from_function(own)
    gathered = strategy.gather(parts, axis=0).numpy().tobytes()
    values, begin = [], 0
    for size in sizes:
        values.append(pickle.loads(gathered[begin : begin + size]))
        begin += size + -size % 4
    return values


def collect(value: Any) -> list[Any] | None:
    """Give a value to the first process.

    Args:
        value: What can be pickled.

    Returns:
        The values of all of them on the first process, None on the others.

    Raises:
        RankError: If one of them is gone, or at another place of the program.
    """
    values = exchange(value)
    return values if rank() == 0 else None


@contextmanager
def together(task: str) -> Iterator[None]:
    """Let all processes fail where one of them does.

    Args:
        task: What they do, for the error's text.

    Raises:
        RankError: If another process has failed, is gone, or does something else.
        Exception: What this one has failed with.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    workers = the_workers()
    told = "" if failure is None else f"{type(failure).__name__}: {failure}"
    try:
        texts = [] if workers is None else workers.meet(f"the end of: {task}", told)
    except RankError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    for place, text in enumerate(texts):
        if text:
            raise RankError(f"{task} has failed on rank {place}, and so here: {text}")


class Watch:
    """Has a program end on all workers as it ends on one.

    Networks that train listen to each other by themselves; this is for what is between them.

    Args:
        workers: The workers.
    """

    def __init__(self, workers: Workers) -> None:
        self.rank = workers.rank
        self.world_size = workers.count
        self.is_over = False
        self._workers = workers

    def leave(self, error: BaseException | None, shutdown: Callable[[], None]) -> RankError | None:
        """Leave the program as all others do.

        Args:
            error: What this process ends with, None if nothing has gone wrong.
            shutdown: Leaves the strategy.

        Returns:
            What another process has failed with before, None if none has.
        """
        self.is_over = True
        try:
            if error is None:
                self._workers.meet("the end of the program")
            else:
                self._workers.fail(error)
        except RankError as failed:
            return failed
        finally:
            _leave()
            shutdown()
        return None


def note_failure(error: BaseException) -> None:
    """Tell the other workers of an error."""
    workers = the_workers()
    if workers is not None:
        workers.fail(error)
        workers.over = workers.over or "This worker has failed."


def watch() -> Watch | None:
    """Begin to listen for processes that fail; None where there is only one.

    Returns:
        The watch.
    """
    workers = the_workers()
    return None if workers is None else Watch(workers)


def seed(number: int) -> None:
    """Seed the generators that TensorFlow and Keras share out; layers have their own.

    Args:
        number: The seed.
    """
    tf.random.set_seed(number)
    tf.random.get_global_generator().reset_from_seed(number)
    shared, _ = shared_seeds()
    if shared is not None:
        shared.assign([number, 0])


def stop() -> None:
    """Leave the other workers, once all are done.

    A strategy that the program has made is the program's to leave. TensorFlow has one cluster for
    as long as a process lives, which a later start goes on with.

    Raises:
        RankError: If one of them is gone, or at another place of the program.
    """
    if _made is not None and tf.distribute.has_strategy():
        workers = the_workers()
        try:
            if workers is not None and not workers.is_over:
                workers.meet("the end of the program")
        finally:
            _leave()


def _leave() -> None:
    global _noted
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is _made:
        tf.distribute.experimental_set_strategy(None)
        _noted = None


def _meet_by_collective() -> None:
    strategy = _noted() if _noted is not None else None
    if strategy is not None:
        ones = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(1))
        strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)
