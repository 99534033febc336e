"""Protocols of what a framework does for models, their optimizers and their state.

The packages `fastnet.backend.torch` and `fastnet.backend.tf` implement `Framework`, and their
modules `processes` implement `Processes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastnet.types import Model, State, Tensor

if TYPE_CHECKING:
    from fastnet.backend.archive import Block
    from fastnet.backend.ema import Decay
    from fastnet.backend.held_state import HeldState
    from fastnet.backend.precision import Precision
    from fastnet.backend.update import Update
    from fastnet.distributed import TensorOps


class Framework(Protocol):
    """The functions of a framework for models, their optimizers and their state."""

    # Models and optimizers.

    def ends_linearly(self, model: Model, /) -> bool:
        """Return whether a model is known to end with a layer without an activation."""

    def value_range(self, tensor: Tensor, /) -> tuple[float, float] | None:
        """Return the least and the largest value of a tensor, or None if it has none now."""

    def feed_forward(self, model: Model, /, *x: Tensor, training: bool = True) -> Any:
        """Return the output of a model."""

    @property
    def make_pass(self) -> Callable[[Any, Callable[[Any], Iterable[Any]]], ModelPass]:
        """Create the callable that runs a ModelOp's model.

        The second argument splits the model's result into one value per output.
        """

    @property
    def make_update(self) -> Callable[[Any, Sequence[str]], Update]:
        """Create the update of an UpdateOp, given the names of its reports."""

    def trainable_parameters(self, model: Model, /) -> Sequence[Any]:
        """List the trainable parameters of a model."""

    def l2_regularization(self, model: Model, beta: float, /) -> Tensor:
        """Return the L2 norm penalty of a model's trainable weights."""

    def update_model(
        self,
        model: Model,
        gradients: Sequence[Tensor | None],
        defer: bool,
        deferred: dict[str, list[Any]],
        /,
    ) -> None:
        """Update the weights of a model by a step of its optimizer, or defer this."""

    def make_optimizer(
        self, source: Any, model: Model, name: str, mixed_precision: Precision, /
    ) -> Any:
        """Make the optimizer of a model by name or function."""

    def check_owner(self, optimizer: Any, model: Model, name: str, /) -> None:
        """Raise an error for an optimizer that does not belong to a model."""

    def get_lr(self, model: Model, /) -> float:
        """Return the learning rate of a model's current optimizer."""

    def set_lr(self, model: Model, lr: float, weight_decay: float | None, /) -> None:
        """Set the learning rate, and the weight decay, of a model's current optimizer."""

    def copy_for_average(self, model: Model, name: str, /) -> Model:
        """Copy a model, without its optimizer, to hold an average of its weights."""

    @property
    def WeightAverager(
        self,
    ) -> Callable[[Model, Model, Decay, bool], WeightAverager]:
        """The class that averages the weights of a model."""

    def describe_parallelism(self, model: Model, /) -> str | None:
        """Describe how a model is distributed; None if it is not."""

    # Files and state.

    def save_model(
        self, model: Model, stem: str, save_optimizer: bool, save_architecture: bool, /
    ) -> str:
        """Save a model; return the path of its weights."""

    def load_model(
        self, model: Model, path: str | os.PathLike[str], load_optimizer: bool, /
    ) -> None:
        """Load a model from a file that `save_model` has written."""

    def model_state(self, model: Model, /) -> dict[str, Any]:
        """Return the state of a model and its optimizers."""

    def load_model_state(self, model: Model, state: Any, /) -> None:
        """Load the result of `model_state`."""

    def random_state(self, models: list[Model], /) -> dict[str, Any]:
        """Return the states of the framework's random number generators."""

    def load_random_state(self, models: list[Model], state: dict[str, Any], /) -> None:
        """Restore the result of `random_state`."""

    def to_block(self, value: Any, /) -> Block | list[Any] | None:
        """Convert a tensor to its type, shape and bytes; return None for anything else."""

    def tensor_makers(self, read: Callable[[str], Block], /) -> Mapping[str, Callable[..., Tensor]]:
        """Return the functions that rebuild tensors from blocks, by kind."""

    @property
    def PreservedState(
        self,
    ) -> Callable[[Iterable[Model]], PreservedState]:
        """The class that holds the state of models, and restores it."""

    def require_variables(self, models: Iterable[Model], /) -> None:
        """Raise a ValueError if the first call of a model would create parameters."""

    # State that models and ops hold beside weights.

    def get_held_state(self, value: Any, /) -> HeldState | None:
        """Return the state of a generator or a variable; None for anything else."""

    def submodules_of(self, value: Any, /) -> dict[str, Any] | None:
        """Return a layer and the layers inside of it by name; None for anything else."""

    def attributes_of(self, part: Any, is_saved: bool, /) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of a layer; if `is_saved`, maybe without what its model saves."""

    def saved_tensors_of(self, model: Model, /) -> list[Any]:
        """List the tensors of a model that are saved with it."""


class ModelPass(Protocol):
    """Runs a model; called as the `forward` of an op."""

    def __call__(self, data: Any, state: State) -> Any:
        """Return the outputs of the model."""

    def close(self) -> None:
        """Restore the model before another pass replaces this one."""


class WeightAverager(Protocol):
    """Averages the weights of a model; `updates` counts the updates of the model."""

    updates: int

    @property
    def state(self) -> dict[str, Any]:
        """Python-side state (first-update flag and decay); empty if it is in variables."""

    def configure(self, decay: Decay, use_buffers: bool) -> None:
        """Apply changed settings."""

    def advance(self) -> None:
        """Count an update whose average a compiled program has computed."""

    def move(self, stepped: Any = True) -> None:
        """Move the averages towards the weights, if the model was updated."""


class PreservedState(Protocol):
    """The state of models, of their gradients and of their optimizers."""

    def restore(self) -> None:
        """Restore the state."""


class Processes(Protocol):
    """The processes of a distributed program."""

    TENSOR_OPS: TensorOps

    def init(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Join the other processes."""

    def shutdown(self) -> None:
        """Leave the other processes."""

    def rank(self) -> int:
        """Return the rank of this process."""

    def world_size(self) -> int:
        """Return the number of processes."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all processes."""

    def gather_object(self, value: Any) -> list[Any] | None:
        """Return the values of all processes on rank 0, and None on the others."""

    def explain_failure(self, error: BaseException) -> None:
        """Explain a failed collective call."""
