"""The base class of `TorchUpdate` and `TFUpdate`; `UpdateOp` describes the sequence they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from fastnet.backend.model_metadata import holder_of, name_of, optimizer_of
from fastnet.types import Model, State

CLIP_SETTINGS = ("clip_norm", "clip_value")
"""The settings of UpdateOp that clip gradients."""

REPORTS = ("grad_norm", "stepped")
"""The names of the values that an update can write."""

Clipping = tuple[float | None, float | None, bool]
"""The maximum norm, the maximum value, and whether the norm is reported."""

Followers = Sequence[Callable[..., None]]
"""Called after each optimizer step; in TensorFlow with a boolean tensor, whether it was taken."""


class Restore:
    """A deferred function that only restores an attribute, and only if the step fails."""

    def __init__(self, owner: Any, name: str, deferred: dict[str, Any], key: str) -> None:
        self._before = owner, name, getattr(owner, name)
        self._deferred: dict[str, Any] | None = deferred
        self._key = key

    def __call__(self) -> None:
        """Wait until all other deferred functions have run, since one of them may fail."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred[self._key] = [self]

    def discard(self) -> None:
        """Restore the attribute, because the step failed."""
        setattr(*self._before)


class ModelUpdate(ABC):
    """Updates the model of an UpdateOp."""

    def __init__(self, op: Any, reports: Sequence[str]) -> None:
        self._op = op
        self._model: Model = op.model
        # The current optimizer changes with the epoch, so it is read from here in every step.
        self._holder = holder_of(op.model, "current_optimizer")
        self._given = op.gradients is not None
        self._reports = tuple(reports)
        self._clipping: Clipping = op.clip_norm, op.clip_value, "grad_norm" in reports
        self.merges: int = op.merge_grad
        # Whether gradients are added to the sums of earlier steps.
        self.is_merging = op.merge_grad > 1

    @abstractmethod
    def __call__(
        self, data: Any, state: State, defer: bool, retain_graph: bool, followers: Followers = ()
    ) -> list[Any] | None:
        """Run the update; return the values of the reports, or None without reports."""

    @abstractmethod
    def flush(self, followers: Followers) -> None:
        """Update with the average of the gradients merged since the last update, if any."""

    @abstractmethod
    def merged(self) -> tuple[int, list[Any]]:
        """Return the number of merged steps, and the sum of each merged parameter or None."""

    @abstractmethod
    def set_merged(self, times: int, gradients: Sequence[Any], parameters: Sequence[Any]) -> None:
        """Continue from what `merged` returned, with the parameters of the gradients."""

    @abstractmethod
    def merged_parameters(self, names: Sequence[str] | None = None) -> list[Any]:
        """List the trainable parameters in order, then frozen ones that have merged gradients.

        With the names of a list that was saved, the frozen ones are those that end the list.
        """

    @abstractmethod
    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        """Return the names of parameters."""

    def drop(self) -> None:
        """Discard the gradients merged since the last update."""
        parameters = self.merged_parameters()
        self.set_merged(0, [None] * len(parameters), parameters)

    def continue_from(self, former: ModelUpdate) -> None:
        """Take over the merged gradients of the update that this one replaces."""
        times, gradients = former.merged()
        if times:
            # With `merge_grad` lowered to 1, the next step averages what was merged until then.
            self.is_merging = True
            self.set_merged(times, gradients, former.merged_parameters())

    def clear_gradients(self) -> None:  # noqa: B027 - there may be nothing to clear
        """Clear the gradients that a failed step has left."""

    def optimizer(self) -> Any:
        """Return the current optimizer; raise a ValueError if the model has none."""
        optimizer = getattr(self._holder, "current_optimizer", None)
        return optimizer_of(self._model) if optimizer is None else optimizer

    def not_a_loss(self, given: Any) -> ValueError:
        """Return the error for a loss that is not a tensor."""
        return ValueError(
            f"UpdateOp of '{name_of(self._model)}' expects a tensor as its loss "
            f"'{self._op.loss_name}', but got {type(given).__name__}."
        )

    def check_gradients(self, gradients: Any, trained: Sequence[Any]) -> Sequence[Any]:
        """Return given gradients; raise a ValueError if there is not one per parameter."""
        is_list = isinstance(gradients, (list, tuple))
        if not is_list or len(gradients) != len(trained):
            got = f"{len(gradients)} of them" if is_list else type(gradients).__name__
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' expects gradients in "
                f"'{self._op.gradients}', a list with one for each of the model's {len(trained)} "
                f"trainable weights, but got {got}."
            )
        return list(gradients)
