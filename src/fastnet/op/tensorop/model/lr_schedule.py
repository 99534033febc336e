"""The op that steps a scheduler of learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from typing import Any, Literal

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import every_optimizer_of, get_metadata, name_of
from fastnet.errors import shorten
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.held_model import require_built
from fastnet.types import Model

__all__ = ["LRSchedule"]

PER = ("update", "epoch")

_EXAMPLE = "torch.optim.lr_scheduler.StepLR(optimizer, 10)"


class LRSchedule(FollowsUpdates):
    """Steps a scheduler of torch for a model's learning rate, after each update or each epoch.

    It is saved in checkpoints. A Keras optimizer takes a schedule as its `learning_rate` instead.
    In a network an UpdateOp must update the model in the same modes.

    Args:
        model: A model from `fastnet.build`, with an optimizer.
        scheduler_fn: Given an optimizer of the model, makes its scheduler, such as
            `lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)`; of a model with
            several optimizers, by epochs, each has one of its own. Or a scheduler that was made
            before, of the model's optimizer.
        per: "update" to step it after each update: not in a step that only merges gradients, or
            whose gradients have overflown. "epoch" to step it when an opening is left in which the
            op runs, but not by an error, and not in a loop over `fastnet.steps` or
            `iter_transform` that is left before its loader's end.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Attributes:
        schedulers: The schedulers, in the order of the model's optimizers.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If it is no torch model or has no optimizer, there is no such `per`, or what
            makes the scheduler fails, returns none, or one that needs a metric to step; in a
            network also if no op updates the model.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), "sgd", model_name="line")
    >>> LRSchedule(model, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10), "epoch")
    LRSchedule('line', mode=train)
    """

    resolved_from = ("model", "per")
    alike_on_ranks = ("per",)

    def __init__(
        self,
        model: Model,
        scheduler_fn: Callable[[Any], Any] | Any,
        per: Literal["update", "epoch"] = "update",
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        require_built("LRSchedule", model)
        super().__init__(model, mode, ds_id)
        self.per = per
        self._check()
        if framework_of(model) != "torch":
            raise ValueError(
                f"LRSchedule of '{name_of(model)}' steps a scheduler of torch, but the model is of "
                f"framework {framework_of(model)!r}. Give its optimizer a schedule as its "
                "learning_rate."
            )
        optimizers = every_optimizer_of(model)
        if not optimizers:
            raise ValueError(
                f"LRSchedule of '{name_of(model)}' schedules its learning rate, but the model has "
                "no optimizer. Give fastnet.build an optimizer_fn."
            )
        self.schedulers = [
            _scheduler_for(model, scheduler_fn, optimizer) for optimizer in optimizers
        ]
        self._of = model

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op.

        Args:
            changed: The names of the settings that changed.

        Raises:
            ValueError: As for `__init__`, and if the model is another one.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        self._check()
        if self.model is not self._of:
            raise ValueError(
                f"LRSchedule schedules the learning rate of '{name_of(self._of)}', which it was "
                f"made for, and not of '{name_of(self.model)}'. Make another LRSchedule for that."
            )

    def _check(self) -> None:
        per: str = self.per
        if per not in PER:
            raise ValueError(
                f"LRSchedule of '{name_of(self.model)}' has per={shorten(per)}; it is one of "
                f"{list(PER)}."
            )

    def follow(self, stepped: Any = True) -> None:
        """Step the scheduler, if it is stepped after each update.

        Args:
            stepped: Not used: it is only called if there was one.
        """
        if self.per == "update":
            self.advance()

    def ending(self) -> Callable[[], None] | None:
        """Return what is to be done when an opening is left; None for nothing."""
        return self.advance if self.per == "epoch" else None

    def advance(self) -> None:
        """Step the scheduler of the optimizer in force.

        Raises:
            ValueError: If it has none.
        """
        current = get_metadata(self.model, "current_optimizer")
        for scheduler in self.schedulers:
            if scheduler.optimizer is current:
                scheduler.step()
                return
        raise ValueError(
            f"LRSchedule of '{name_of(self.model)}' has no scheduler for the optimizer in force, "
            f"{type(current).__name__}, which the model did not have when it was made. Make the "
            "LRSchedule anew."
        )

    def told_settings(self) -> list[str]:
        """Say what the op does, for `explain`."""
        names = dict.fromkeys(type(one).__name__ for one in self.schedulers)
        return [f"steps {', '.join(names)} after each {self.per}"]

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedulers are.

        Returns:
            Their states, in a list under "schedulers".
        """
        return {"schedulers": [one.state_dict() for one in self.schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: What the op, or another one like it, remembered.

        Raises:
            ValueError: If it is none, or of another number of schedulers. The op goes on as before
                then.
        """
        given: Any = state
        states = given.get("schedulers") if isinstance(given, dict) else None
        if not isinstance(states, list) or len(states) != len(self.schedulers):
            raise ValueError(
                f"The state to load is none of an LRSchedule of {len(self.schedulers)} "
                "schedulers. Load it into the LRSchedule of the model that it was saved from."
            )
        for scheduler, own in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(own)


def _scheduler_for(model: Model, source: Any, optimizer: Any) -> Any:
    title = f"LRSchedule of '{name_of(model)}'"
    is_made = hasattr(source, "step") and hasattr(source, "optimizer")
    scheduler: Any = source if is_made else None
    if callable(source) and not is_made:
        try:
            scheduler = source(optimizer)
        except Exception as error:
            name = getattr(source, "__name__", type(source).__name__)
            example = f"{name}(optimizer, ...)" if isinstance(source, type) else _EXAMPLE
            raise ValueError(
                f"{title} calls {name} with the model's optimizer alone, which failed: {error!r}. "
                "Pass a function that takes an optimizer and returns a scheduler, such as "
                f"`lambda optimizer: {example}`."
            ) from error
    if not (hasattr(scheduler, "step") and hasattr(scheduler, "optimizer")):
        raise ValueError(
            f"{title} got {shorten(source if scheduler is None else scheduler)} for a scheduler. "
            "Pass a function that takes an optimizer and returns one, such as "
            f"`lambda optimizer: {_EXAMPLE}`."
        )
    kind = type(scheduler).__name__
    if scheduler.optimizer is not optimizer:
        raise ValueError(
            f"{title} got a {kind} of another optimizer than the model's, "
            f"{type(optimizer).__name__}. Pass a function that makes it of the one that it is "
            "given."
        )
    needed = [
        name
        for name, one in signature(scheduler.step).parameters.items()
        if one.default is Parameter.empty
        and one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        raise ValueError(
            f"{title} got a {kind}, whose step needs {needed}, which no update knows. Step it in "
            "your own loop, after evaluation."
        )
    return scheduler
