"""The base class of `TorchUpdate` and `TFUpdate`; `UpdateOp` describes the sequence they run.

A window is the run of steps whose gradients are accumulated for one update (`merge_grad`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from fastnet.backend.model_metadata import holder_of, name_of, optimizer_of
from fastnet.errors import shorten
from fastnet.types import Model, State

SHARED_STEP_SETTINGS = ("clip_norm", "clip_value", "skip_nonfinite")
"""The settings that UpdateOps must share to take one optimizer step together."""

REPORTS = ("grad_norm", "stepped", "total")
"""The names of the values that an update can write."""

Followers = Sequence[Callable[..., None]]
"""Called after each optimizer step; in TensorFlow with a boolean tensor, whether it was taken."""


class OptimizerStepSettings(NamedTuple):
    """Settings of an optimizer's step, and whether the norm of its gradients is needed.

    Attributes:
        clip_norm: The maximum norm of all gradients, or None.
        clip_value: The maximum absolute value of an element, or None.
        skip_nonfinite: Whether to skip the step if a gradient is not finite.
        needs_norm: Whether the norm of the gradients is needed.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    skip_nonfinite: bool = False
    needs_norm: bool = False

    @property
    def reads_gradients(self) -> bool:
        """Whether gradients are read, or changed, before the step."""
        clips = self.clip_norm is not None or self.clip_value is not None
        return clips or self.skip_nonfinite or self.needs_norm


PLAIN_STEP = OptimizerStepSettings()
"""A step that only takes the gradients as they are."""


class SavedWindow(NamedTuple):
    """The gradients that were merged since the last update.

    Attributes:
        steps: The number of merged steps.
        gradients: The sum for each of `window_parameters`, or None.
        weight: The sum of the weights; None without weights.
    """

    steps: int
    gradients: Sequence[Any]
    weight: float | None = None


class Update(ABC):
    """The runtime half of an UpdateOp: computes gradients, merges and clips them, and steps."""

    joins_deferred: ClassVar[bool]
    """Whether an update shares one optimizer step with deferred updates of its model."""

    def __init__(self, op: Any, reports: Sequence[str]) -> None:
        self._op = op
        self._model: Model = op.model
        # The current optimizer changes with the epoch, so it is read from here in every step.
        self._optimizer_holder = holder_of(op.model, "current_optimizer")
        self._gradients_are_given = op.gradients is not None
        self._weighted = op.weight is not None
        self._reports = tuple(reports)
        self._step_settings = OptimizerStepSettings(
            op.clip_norm,
            op.clip_value,
            op.skip_nonfinite,
            needs_norm="grad_norm" in reports,
        )
        self.window_length: int = op.merge_grad
        # Weighted gradients are divided by the sum of their weights, so they are always merged.
        self._always_merges: bool = op.merge_grad > 1 or self._weighted

    @property
    @abstractmethod
    def is_merging(self) -> bool:
        """Whether gradients are added to the sums of earlier steps.

        With `merge_grad` lowered to 1, the next step averages what was merged until then.
        """

    def __call__(
        self, data: Any, state: State, defer: bool, retain_graph: bool, followers: Followers = ()
    ) -> list[Any] | None:
        """Run the update.

        Args:
            data: The loss, or the given gradients; in a list with their weight if they have one.
            state: The state that ops get.
            defer: Whether the optimizer steps at the end of the step.
            retain_graph: Whether a later op differentiates a graph, possibly that of the loss.
            followers: Functions to call after the optimizer's step. In torch they are called only
                if it was taken.

        Returns:
            The values of the reports, in order, or None without reports.
        """
        loss_or_gradients, weight = data if self._weighted else (data, None)
        if state["warmup"]:
            return self._report_warmup(loss_or_gradients)
        return self._run(loss_or_gradients, weight, state, defer, retain_graph, followers)

    @abstractmethod
    def _report_warmup(self, loss_or_gradients: Any) -> list[Any] | None:
        """Return the values of the reports of a step without an update."""

    @abstractmethod
    def _run(
        self,
        loss_or_gradients: Any,
        weight: Any,
        state: State,
        defer: bool,
        retain_graph: bool,
        followers: Followers,
    ) -> list[Any] | None:
        """Run the sequence: backward, merge, clip and step; the end may be after the last op."""

    def flush(self, followers: Followers, state: State, defer: bool) -> None:
        """Update with the average of the gradients merged since the last update, if any.

        In torch the step is deferred by `state` if `defer` is true, as in a step of a network, and
        what undoes it is added to the state.
        """
        if self.window_steps():
            self._flush(followers, state, defer)

    @abstractmethod
    def window_steps(self) -> int:
        """Return the number of steps merged since the last update."""

    @abstractmethod
    def _flush(self, followers: Followers, state: State, defer: bool) -> None:
        """Update with the average of the merged gradients."""

    @abstractmethod
    def clear_gradients(self) -> None:
        """Clear the gradients that a failed update has left."""

    @abstractmethod
    def save_window(self) -> SavedWindow:
        """Return a copy of the gradients merged since the last update."""

    @abstractmethod
    def load_window(self, window: SavedWindow, parameters: Sequence[Any]) -> None:
        """Replace the merged gradients by saved ones, one for each of `parameters`."""

    def window_parameters(self, names: Sequence[str] | None = None) -> list[Any]:
        """List the trainable parameters in order, then frozen ones that have merged gradients.

        With the names of a saved list, the frozen parameters are those with the names at its end.
        """
        trained, frozen = self.trained_parameters(), self.frozen_parameters()
        if names is None:
            return trained + list(filter(self.has_sum, frozen))
        saved = names[len(trained) :]
        named = zip(frozen, self.names_of(frozen), strict=True)
        return trained + [parameter for parameter, name in named if name and name in saved]

    @abstractmethod
    def trained_parameters(self) -> list[Any]:
        """List the trainable parameters, in torch followed by others that the optimizer updates."""

    @abstractmethod
    def frozen_parameters(self) -> list[Any]:
        """List the parameters that are not trainable now."""

    @abstractmethod
    def has_sum(self, parameter: Any) -> bool:
        """Return whether gradients of a parameter have been merged."""

    @abstractmethod
    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        """Return the names of parameters."""

    def shares_scaled_gradients(self, other: Update) -> bool:
        """Return whether gradients of two scales would be summed if both were deferred."""
        return False

    def drop(self) -> None:
        """Discard the gradients merged since the last update."""
        parameters = self.window_parameters()
        self.load_window(SavedWindow(0, [None] * len(parameters)), parameters)

    def continue_from(self, previous: Update) -> None:
        """Take over the merged gradients of the update that this one replaces."""
        window = previous.save_window()
        if not window.steps:
            return
        if (window.weight is None) == self._weighted:
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' has merged the gradients of {window.steps} "
                f"steps {'without weights' if self._weighted else 'with weights'}, so its `weight` "
                "cannot change before the update. Change it right after an update."
            )
        self.load_window(window, previous.window_parameters())

    def optimizer(self) -> Any:
        """Return the current optimizer; raise a ValueError if the model has none."""
        optimizer = getattr(self._optimizer_holder, "current_optimizer", None)
        return optimizer_of(self._model) if optimizer is None else optimizer

    def not_a_loss(self, value: Any) -> ValueError:
        """Return the error for a loss that is not a tensor."""
        return ValueError(
            f"UpdateOp of '{name_of(self._model)}' expects a tensor as its loss "
            f"'{self._op.loss_name}', but got {type(value).__name__}."
        )

    def not_a_weight(self, value: Any) -> ValueError:
        """Return the error for a weight that is not one number."""
        shape = getattr(value, "shape", None)
        described = shorten(value) if shape is None else f"a value of the shape {tuple(shape)}"
        return ValueError(
            f"UpdateOp of '{name_of(self._model)}' expects one number as its weight "
            f"'{self._op.weight}', such as the number of tokens of the batch, but got {described}."
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
