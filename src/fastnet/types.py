"""Protocols of ops, schedulers and slicers, and type aliases.

A network runs any object with the attributes of a protocol. Deriving from fastnet's base classes is
not required.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

__all__ = [
    "OP_ATTRIBUTES",
    "SLICER_ATTRIBUTES",
    "Batch",
    "DatasetLike",
    "DeferredLike",
    "Forward",
    "Keys",
    "Mode",
    "Model",
    "Names",
    "NumpyOpLike",
    "NumpyOps",
    "OpLike",
    "Ops",
    "RunStep",
    "SchedulerLike",
    "SlicerLike",
    "Slicers",
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
"""A torch.nn.Module or a Keras model from `fastnet.build`."""

Batch: TypeAlias = MutableMapping[str, Any]
"""A mutable mapping of keys to values."""

State: TypeAlias = dict[str, Any]
"""The state that ops get: mode, epoch, warmup, req_grad, deferred, eager and tape.

In PyTorch it is one dict in all steps of a session. In training it also has "undo", functions that
are called if a step fails, and "trained_models" and "reduced_by_ddp" for updates. In TensorFlow
each step has a copy, with its own tape."""

Mode: TypeAlias = Literal["train", "eval", "test", "infer"]
"""The mode that a network runs in."""

Keys: TypeAlias = str | Iterable[str]
"""A key of a batch, or several."""

Names: TypeAlias = str | Iterable[str] | None
"""A mode or dataset id, or several, or None for all."""

Forward: TypeAlias = Callable[[Any, State], Any]
"""The forward function of an op: takes its inputs and the state, and returns its outputs."""

RunStep: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""A function that runs a batch, and returns it with the keys that ops have written."""


@runtime_checkable
class OpLike(Protocol):
    """An op, which reads and writes keys of a batch.

    A network also calls `build(framework, device)`, `get_fe_models()`, `get_fe_loss_keys()` and
    `fe_retain_graph(retain)` if an op has them.
    """

    @property
    def inputs(self) -> Sequence[str]:
        """The keys to read."""

    @property
    def outputs(self) -> Sequence[str]:
        """The keys to write."""

    @property
    def mode(self) -> Collection[str]:
        """The modes to run in; all if empty."""

    @property
    def ds_id(self) -> Collection[str]:
        """The datasets to run for; all if empty."""

    @property
    def in_list(self) -> bool:
        """Whether `forward` takes a list of values."""

    @property
    def out_list(self) -> bool:
        """Whether `forward` returns a list of values."""

    def forward(self, data: Any, state: State, /) -> Any:
        """Compute the output value, or list of values, from the input value, or list of values."""


@runtime_checkable
class NumpyOpLike(OpLike, Protocol):
    """An op that can also run on whole batches of arrays, in postprocessing."""

    def forward_batch(self, data: Any, state: State, /) -> Any:
        """Apply `forward` to a batch of samples."""


@runtime_checkable
class SchedulerLike(Protocol[T_co]):
    """A value that depends on the epoch."""

    def get_current_value(self, epoch: int) -> T_co | None:
        """Return the value for an epoch, counted from 1, or None."""

    def get_all_values(self) -> Sequence[T_co | None]:
        """Return the values of all epochs."""


@runtime_checkable
class SlicerLike(Protocol):
    """A slicer, which slices batches into minibatches, or unslices their results, or both."""

    @property
    def slice_inputs(self) -> Sequence[str]:
        """The keys to slice."""

    @property
    def unslice_inputs(self) -> Sequence[str]:
        """The keys to unslice."""

    @property
    def mode(self) -> Collection[str]:
        """The modes to run in; all if empty."""

    @property
    def ds_id(self) -> Collection[str]:
        """The datasets to run for; all if empty."""

    def slice_batches(self, batches: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        """Slice the values of `slice_inputs`, each into the same number of slices."""

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        """Make one value of the slices of one key."""


class DeferredLike(Protocol):
    """A callable in the state's "deferred" lists, which runs after the last op."""

    def __call__(self) -> None:
        """Run the deferred work."""


class DatasetLike(Protocol):
    """A dataset that `transform` accepts instead of batches, such as FastEstimator's Pipeline."""

    def __call__(self, mode: str, epoch: int, ds_id: str, shuffle: bool) -> Any:
        """Return a context manager whose value is an iterable of batches."""


_T = TypeVar("_T")
_Scheduled: TypeAlias = _T | SchedulerLike[_T] | None

Ops: TypeAlias = _Scheduled[OpLike] | Sequence[_Scheduled[OpLike]]
"""An op, or several; each may be None, or a scheduler of ops."""

NumpyOps: TypeAlias = _Scheduled[NumpyOpLike] | Sequence[_Scheduled[NumpyOpLike]]
"""A postprocessing op, or several; each may be None, or a scheduler of ops."""

Slicers: TypeAlias = _Scheduled[SlicerLike] | Sequence[_Scheduled[SlicerLike]]
"""A slicer, or several; each may be None, or a scheduler of slicers."""

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
    """List the attributes that an object lacks.

    Args:
        item: The object.
        attributes: The names to look for.

    Returns:
        The names that the object does not have.
    """
    return [name for name in attributes if not hasattr(item, name)]


def is_op(item: object) -> bool:
    """Return whether an object is an op, as in `OpLike`."""
    return not isinstance(item, type) and not missing_attributes(item, OP_ATTRIBUTES)


def is_tensor_op(item: object) -> bool:
    """Return whether an object is an op that a network can run before postprocessing."""
    return is_op(item) and (not hasattr(item, "forward_batch") or hasattr(item, "get_fe_models"))


def is_numpy_op(item: object) -> bool:
    """Return whether an object is an op that can run in postprocessing, as in `NumpyOpLike`."""
    return is_op(item) and hasattr(item, "forward_batch")


def is_slicer(item: object) -> bool:
    """Return whether an object is a slicer, as in `SlicerLike`."""
    return not isinstance(item, type) and not missing_attributes(item, SLICER_ATTRIBUTES)


def is_given(item: object) -> bool:
    """Return whether an item is neither None nor the False of ``condition and item``."""
    return item is not None and item is not False


def is_scheduler(item: object) -> bool:
    """Return whether an object is a scheduler, as in `SchedulerLike`."""
    return (
        not isinstance(item, type)
        and callable(getattr(item, "get_current_value", None))
        and callable(getattr(item, "get_all_values", None))
    )
