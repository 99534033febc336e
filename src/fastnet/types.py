"""What a network asks of the things it runs: protocols, not base classes.

An op, a scheduler or a slicer takes part in a network by having these attributes, whoever wrote
its class. Deriving from fastnet's own classes is a convenience.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

__all__ = [
    "OP_ATTRIBUTES",
    "SLICER_ATTRIBUTES",
    "Batch",
    "DatasetLike",
    "DeferredLike",
    "Forward",
    "Mode",
    "Model",
    "NumpyOpLike",
    "OpLike",
    "RunStep",
    "SchedulerLike",
    "SlicerLike",
    "State",
    "Tensor",
    "is_given",
    "is_numpy_op",
    "is_op",
    "is_scheduler",
    "is_slicer",
    "is_tensor_op",
    "missing_attributes",
]

T_co = TypeVar("T_co", covariant=True)

Tensor: TypeAlias = Any
"""A torch.Tensor, a tf.Tensor or a numpy array."""

Model: TypeAlias = Any
"""A torch.nn.Module or a Keras model that `fastnet.build` has made ready."""

Batch: TypeAlias = MutableMapping[str, Any]
"""Keys, and the values under them."""

State: TypeAlias = dict[str, Any]
"""The context of a step: mode, epoch, warmup, req_grad, deferred, eager, tape."""

Mode: TypeAlias = Literal["train", "eval", "test", "infer"]
"""What a network is opened for."""

Forward: TypeAlias = Callable[[Any, State], Any]
"""What runs an op: takes its input value or values and the state, returns its output or outputs."""

RunStep: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What runs a minibatch: takes its values by key, and returns them with what ops have written."""


@runtime_checkable
class OpLike(Protocol):
    """An op: reads keys, runs, writes keys.

    A network also calls `build(framework, device)`, `get_fe_models()`, `get_fe_loss_keys()` and
    `fe_retain_graph(retain)` where an op has them.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    mode: Collection[str]
    ds_id: Collection[str]
    in_list: bool
    out_list: bool

    def forward(self, data: Any, state: State) -> Any:
        """Turn the input value (or list of values) into the output value (or list of values)."""


@runtime_checkable
class NumpyOpLike(OpLike, Protocol):
    """An op that can run on whole batches of arrays, as postprocessing does."""

    def forward_batch(self, data: Any, state: State) -> Any:
        """Do what `forward` does to a point to a batch of points."""


@runtime_checkable
class SchedulerLike(Protocol[T_co]):
    """Something that stands for another thing in each epoch."""

    def get_current_value(self, epoch: int) -> T_co | None:
        """Return what to use in an epoch, counted from 1; None for nothing."""

    def get_all_values(self) -> Sequence[T_co | None]:
        """Return everything that may be used in any epoch."""


@runtime_checkable
class SlicerLike(Protocol):
    """Something that cuts batches into minibatches, or joins minibatches, or both."""

    slice_inputs: Sequence[str]
    unslice_inputs: Sequence[str]
    mode: Collection[str]
    ds_id: Collection[str]

    def slice_batches(self, batches: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        """Cut the values of `slice_inputs` into the same number of pieces."""

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        """Join the pieces of one key."""


class DeferredLike(Protocol):
    """What an op may put into a state's "deferred" lists, to run after the last op."""

    def __call__(self) -> None:
        """Do what was put off."""


class DatasetLike(Protocol):
    """What `transform` takes besides batches: called for a mode and an epoch, entered for a loader.

    FastEstimator's Pipeline is one.
    """

    def __call__(self, mode: str, epoch: int, ds_id: str, shuffle: bool) -> Any:
        """Return a context manager whose value is an iterable of batches."""


OP_ATTRIBUTES = ("inputs", "outputs", "mode", "ds_id", "in_list", "out_list", "forward")
SLICER_ATTRIBUTES = (
    "slice_inputs",
    "unslice_inputs",
    "mode",
    "ds_id",
    "slice_batches",
    "_unslice_batch",
)


def missing_attributes(item: object, attributes: Sequence[str]) -> list[str]:
    """List what an object lacks.

    Args:
        item: The object.
        attributes: The names to look for.

    Returns:
        Those of the names that the object does not have.
    """
    return [name for name in attributes if not hasattr(item, name)]


def is_op(item: object) -> bool:
    """Return whether an object can be an op of a network.

    Args:
        item: Any object.

    Returns:
        True if it has all that `OpLike` asks for.
    """
    return not isinstance(item, type) and not missing_attributes(item, OP_ATTRIBUTES)


def is_tensor_op(item: object) -> bool:
    """Return whether an object can be an op of a network, rather than of its postprocessing.

    Args:
        item: Any object.

    Returns:
        True if it is an op, and not one that is made for arrays only.
    """
    return is_op(item) and (not hasattr(item, "forward_batch") or hasattr(item, "get_fe_models"))


def is_numpy_op(item: object) -> bool:
    """Return whether an object can be a postprocessing op of a network.

    Args:
        item: Any object.

    Returns:
        True if it has all that `NumpyOpLike` asks for.
    """
    return is_op(item) and hasattr(item, "forward_batch")


def is_slicer(item: object) -> bool:
    """Return whether an object can be a slicer of a network.

    Args:
        item: Any object.

    Returns:
        True if it has all that `SlicerLike` asks for.
    """
    return not isinstance(item, type) and not missing_attributes(item, SLICER_ATTRIBUTES)


def is_given(item: object) -> bool:
    """Return whether there is an item at all, where a program may have left it out.

    Args:
        item: Any object.

    Returns:
        False for None, and for the False that `condition and item` leaves; else True.
    """
    return item is not None and item is not False


def is_scheduler(item: object) -> bool:
    """Return whether an object stands for another one in each epoch.

    Args:
        item: Any object.

    Returns:
        True if it has all that `SchedulerLike` asks for.
    """
    return (
        not isinstance(item, type)
        and callable(getattr(item, "get_current_value", None))
        and callable(getattr(item, "get_all_values", None))
    )
