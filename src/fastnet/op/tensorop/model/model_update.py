"""What an UpdateOp does with the models of any framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from fastnet.backend.facts import holder_of, name_of
from fastnet.backend.scheduled import optimizer_of
from fastnet.frameworks import MissingPart
from fastnet.types import Model, State

__all__ = ["REPORTS", "Extras", "ModelUpdate", "Updates"]

REPORTS = ("grad_norm", "stepped")
"""What an update can tell of itself."""


class Updates(Protocol):
    """What is read of an UpdateOp: see there."""

    model: Model
    loss_name: str | None
    gradients: str | None
    merge_grad: int
    defer: bool


@dataclass(frozen=True)
class Extras:
    """What an update does besides taking gradients and its optimizer's step.

    Attributes:
        clip_norm: The largest norm of all gradients together, or None.
        clip_value: The largest absolute value of a gradient's numbers, or None.
        reports: What is told of it, of `REPORTS`, in the order of the op's outputs.
        followers: Called after each step that the optimizer has taken; in TensorFlow with whether
            it has, as a tensor.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    reports: tuple[str, ...] = ()
    followers: tuple[Callable[..., None], ...] = ()

    def are_any(self) -> bool:
        """Return whether there is anything to do."""
        return self != _NONE

    def followed_by(self, followers: Sequence[Callable[..., None]]) -> Extras:
        """Return the same for an update that others follow.

        Args:
            followers: What follows it.
        """
        return replace(self, followers=tuple(followers)) if followers else self


_NONE = Extras()


class ModelUpdate(ABC):
    """What an UpdateOp does with a model; each framework has a class derived from it.

    Args:
        op: The op.
        device_count: How many devices a step runs on.

    Raises:
        ValueError: If `merge_grad` is more than 1 on several devices.
    """

    trained: ClassVar[str]
    """What the framework calls what is trained, for error texts."""

    # made of extras and a model, and taken last by this object's call: does them in one step, and
    # its `reports` tells of that; None where a framework has no such class
    _extra: ClassVar[type[Any] | None] = None

    def __init__(self, op: Updates, device_count: int) -> None:
        if op.merge_grad > 1 and device_count > 1:
            raise ValueError(
                f"UpdateOp of '{name_of(op.model)}' has merge_grad={op.merge_grad}, which is not "
                "supported on several devices. Use merge_grad=1."
            )
        self._op = op
        self._model: Model = op.model
        # what may change is read off this in each step
        self._optimized = holder_of(op.model, "current_optimizer")
        self._given = op.gradients is not None
        self._merge = op.merge_grad

    @abstractmethod
    def __call__(
        self, data: Any, state: State, op: Updates, defer: bool, retain_graph: bool
    ) -> None:
        """Take gradients, and update or put the update off.

        Args:
            data: The loss, or a list of gradients.
            state: The step's context.
            op: The op, or a copy of it, with a `defer` of its own.
            defer: Whether to put the update off until after the last op, whatever the op says.
            retain_graph: Whether a later op takes gradients of the same graph.
        """

    def with_extras(self, extras: Extras) -> Callable[..., Any]:
        """Return what updates as this does, and clips gradients, reports, or has followers.

        Args:
            extras: What it does besides.

        Returns:
            A function with the parameters of this object's call, which returns a value for each of
            `extras.reports`: a list of them, or None for none.

        Raises:
            MissingPart: If updates of this framework can do no more.
        """
        if self._extra is None:
            raise MissingPart(
                f"{type(self).__name__} updates '{name_of(self._model)}', and can neither clip "
                "gradients nor report on its steps. Leave out clip_norm, clip_value and outputs."
            )
        return partial(self._run_with, self._extra, extras)

    def _run_with(
        self,
        cls: type[Any],
        extras: Extras,
        data: Any,
        state: State,
        op: Updates,
        defer: bool,
        retain_graph: bool,
    ) -> list[Any] | None:
        extra = cls(extras, self._model)
        update: Callable[..., None] = self
        update(data, state, op, defer, retain_graph, extra)
        reports: list[Any] | None = extra.reports()
        return reports

    def drop(self) -> None:
        """Forget what was merged since the last update."""
        self.set_merged(0, [None] * len(self.merged()[1]))

    def flush(self, extras: Extras) -> None:
        """Update with the average of what was merged since the last update, if anything was.

        Args:
            extras: What is done besides.
        """
        raise MissingPart(
            f"{type(self).__name__} updates '{name_of(self._model)}', and cannot do so with fewer "
            "steps than it merges. Leave out `rest`."
        )

    def abandon(self) -> None:  # noqa: B027 - there may be nothing to let go of
        """Let go of what a step that failed has left, wherever it did; there may be nothing."""

    @abstractmethod
    def merged(self) -> tuple[int, list[Any]]:
        """Return the gradients that were added up since the last update.

        Returns:
            Of how many steps, and the sum for each of what is trained, or None.
        """

    @abstractmethod
    def complaint_about(self, times: int, gradients: Sequence[Any]) -> str | None:
        """Return why gradients cannot be gone on from.

        Args:
            times: Of how many steps they are said to be.
            gradients: What is said to be the sums, one for each of what is trained.

        Returns:
            What is wrong, to stand behind "The state to load"; None if nothing is.
        """

    @abstractmethod
    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        """Go on from gradients that were added up before.

        Args:
            times: Of how many steps.
            gradients: What `merged` gave.
        """

    def _optimizer(self) -> Any:
        """Look up the optimizer in force; refuse a model that has none."""
        optimizer = getattr(self._optimized, "current_optimizer", None)
        return optimizer_of(self._model) if optimizer is None else optimizer

    def _no_loss(self, given: Any) -> ValueError:
        """Word the error of a loss that is no tensor."""
        return ValueError(
            f"UpdateOp of '{name_of(self._model)}' reads a tensor as its loss "
            f"'{self._op.loss_name}', but got {type(given).__name__}."
        )

    def _require_gradients(self, gradients: Any, count: int) -> None:
        """Refuse gradients that are not one for each of what is trained."""
        is_list = isinstance(gradients, (list, tuple))
        if not is_list or len(gradients) != count:
            got = f"{len(gradients)} of them" if is_list else type(gradients).__name__
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' reads gradients from "
                f"'{self._op.gradients}', a list with one for each of the model's {count} "
                f"trainable {self.trained}, but got {got}."
            )
