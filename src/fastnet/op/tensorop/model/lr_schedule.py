"""The op that steps a learning rate scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from typing import Any, Literal

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import every_optimizer_of, get_metadata, name_of
from fastnet.errors import shorten
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.types import Model

PER = ("update", "epoch")

_EXAMPLE = "torch.optim.lr_scheduler.StepLR(optimizer, 10)"


class LRSchedule(FollowsUpdates):
    """Steps a torch learning rate scheduler of a model, after each update or each epoch.

    Its state is saved in checkpoints. A Keras optimizer takes a schedule as its `learning_rate`
    instead. In a network an UpdateOp must update the model in the same modes. See `TensorOp` for
    `mode` and `ds_id`.

    Args:
        model: A model from `fastnet.build`, with an optimizer.
        scheduler_fn: A function that takes an optimizer and returns its scheduler, such as
            `lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)`. It is called for
            each optimizer of the model. Or a scheduler of the model's only optimizer.
        per: "update" to step it after each update, and so not while gradients are merged or where
            they have overflowed. "epoch" to step it whenever a network with the op is left, except
            after an error, or if a loop over `fastnet.steps` or `iter_transform` stops before its
            loader ends.

    Attributes:
        schedulers: The schedulers, in the order of the model's optimizers.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If `model` is no torch model or has no optimizer, there is no such `per`, or
            `scheduler_fn` fails, or returns no scheduler or one whose step needs a metric; when a
            network is entered, also if no op updates the model.

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
        super().__init__(model, mode, ds_id)
        self.per = per
        self._check()
        if framework_of(model) != "torch":
            raise ValueError(
                f"LRSchedule of '{name_of(model)}' steps a torch scheduler, but the model is of "
                f"framework {framework_of(model)!r}. Pass a schedule to its optimizer as its "
                "learning_rate."
            )
        optimizers = every_optimizer_of(model)
        if not optimizers:
            raise ValueError(
                f"LRSchedule of '{name_of(model)}' needs an optimizer, but the model has none. "
                "Pass optimizer_fn to fastnet.build."
            )
        self.schedulers = [
            _scheduler_for(model, scheduler_fn, optimizer) for optimizer in optimizers
        ]

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check changed settings; see `FollowsUpdates`."""
        super().resolve_settings(changed)
        self._check()

    def _check(self) -> None:
        per: str = self.per
        if per not in PER:
            raise ValueError(
                f"LRSchedule of '{name_of(self.model)}' has per={shorten(per)}, but it must be one "
                f"of {list(PER)}."
            )

    def follow(self, stepped: Any = True) -> None:
        """Step the scheduler, if it is stepped after each update."""
        if self.per == "update":
            self.advance()

    @property
    def affects_next_update(self) -> bool:
        """Whether the next update in a step depends on what `advance` does: True."""
        return True

    def exit_call(self) -> Callable[[], None] | None:
        """Return the function to call when the network is left, or None."""
        return self.advance if self.per == "epoch" else None

    def advance(self) -> None:
        """Step the scheduler of the current optimizer; raise a ValueError if it has none."""
        current = get_metadata(self.model, "current_optimizer")
        for scheduler in self.schedulers:
            if scheduler.optimizer is current:
                scheduler.step()
                return
        raise ValueError(
            f"LRSchedule of '{name_of(self.model)}' has no scheduler for the current optimizer, "
            f"{type(current).__name__}, which the model got later. Make a new LRSchedule."
        )

    def describe_settings(self) -> list[str]:
        """Describe the op, for `explain`."""
        names = dict.fromkeys(type(scheduler).__name__ for scheduler in self.schedulers)
        return [f"steps {', '.join(names)} after each {self.per}"]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the schedulers.

        Returns:
            Under "schedulers" a list of the states, under "classes" one of the schedulers' classes,
            and under "model_name" the model's name.
        """
        return {
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "classes": [_class_of(scheduler) for scheduler in self.schedulers],
            "model_name": name_of(self.model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Args:
            state: The state of this op, or of an LRSchedule of a model of this name, with
                schedulers of the same classes.

        Raises:
            ValueError: If it is not such a state. The op is unchanged then.
        """
        classes = [_class_of(scheduler) for scheduler in self.schedulers]
        self._check_state(state, "schedulers", list, classes=classes)
        pairs = list(zip(self.schedulers, state["schedulers"], strict=True))
        for scheduler, scheduler_state in pairs:
            scheduler.load_state_dict(scheduler_state)


def _class_of(scheduler: Any) -> str:
    """Return the name of a scheduler's class, with those of the schedulers that it combines."""
    inner: list[str] = []
    for value in vars(scheduler).values():
        if isinstance(value, (list, tuple)):
            inner += [_class_of(item) for item in value if _is_scheduler(item)]
    name = type(scheduler).__name__
    return f"{name}({', '.join(inner)})" if inner else name


def _is_scheduler(value: Any) -> bool:
    return hasattr(value, "step") and hasattr(value, "optimizer")


def _scheduler_for(model: Model, source: Any, optimizer: Any) -> Any:
    title = f"LRSchedule of '{name_of(model)}'"
    scheduler = source
    if callable(source) and not _is_scheduler(source):
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
    if not _is_scheduler(scheduler):
        raise ValueError(
            f"{title} got {shorten(source if scheduler is None else scheduler)}, not a scheduler. "
            "Pass a function that takes an optimizer and returns one, such as "
            f"`lambda optimizer: {_EXAMPLE}`."
        )
    class_name = type(scheduler).__name__
    if scheduler.optimizer is not optimizer:
        raise ValueError(
            f"{title} got a {class_name} of another optimizer than the model's "
            f"{type(optimizer).__name__}. Pass a function that makes it from its argument."
        )
    required_arguments = [
        name
        for name, parameter in signature(scheduler.step).parameters.items()
        if parameter.default is Parameter.empty
        and parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if required_arguments:
        raise ValueError(
            f"{title} got a {class_name}, whose step needs {required_arguments}, which an update "
            "does not have. Step it in your own loop, after evaluation."
        )
    return scheduler
