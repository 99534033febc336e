"""The op that updates a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

from fastnet.backend.facts import fact, name_of, put_fact
from fastnet.backend.framework import framework_of
from fastnet.backend.scheduled import every_optimizer_of
from fastnet.errors import nearest_name, shorten
from fastnet.frameworks import framework_named
from fastnet.op.checks import is_int, is_number
from fastnet.op.op import is_overridden
from fastnet.op.tensorop.model.held_model import HoldsModel, require_built
from fastnet.op.tensorop.model.model_update import REPORTS, Extras, ModelUpdate
from fastnet.types import Forward, Model, State
from fastnet.util import to_set

RESTS = ("carry", "flush", "drop")


class UpdateOp(HoldsModel):
    """Updates a model's weights by a loss.

    In torch, UpdateOps that stand last in a row take their optimizers' steps after the last of them
    has its gradients, so that models which depend on each other can be updated in one step. In
    TensorFlow each takes its own at once, as its tape still has the values from before.

    A Keras model's own losses, such as regularizers, are added to the loss.

    Gradients are clipped right before the optimizer's step: after those of merged steps were
    averaged, those of several updates in a row or of several processes came together, and a scaled
    loss's were scaled down. What is clipped, and measured, are those of all that the optimizer
    updates, as `torch.nn.utils.clip_grad_norm_` and `tf.clip_by_global_norm` do it; of a sharded
    model's the norm is that of the whole.

    Args:
        model: A model from `fastnet.build`.
        loss_name: The key of the loss; a loss with elements counts by its mean.
        gradients: The key of ready gradients, a list with one for each trainable parameter. None
            to take the gradients of the loss, which mixed precision needs.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        merge_grad: How many steps' gradients to average for one update.
        defer: Whether to take the optimizer's step after the network's last op.
        clip_norm: The largest norm of all gradients together, above 0; larger ones are scaled down
            to it. None to leave them.
        clip_value: The largest absolute value of each number of the gradients, above 0. None to
            leave them.
        outputs: Keys for what the update tells of itself, by what that is: "grad_norm" for the norm
            of all gradients before they are clipped, a scalar, NaN in a step without an update;
            "stepped" for whether the optimizer has taken a step, a boolean scalar: False while
            gradients are merged, in a warmup, and where those of a scaled loss have overflown.
        rest: What becomes of steps that are merged, but fewer than `merge_grad`, when an opening
            for training is left, which is at an epoch's end: "carry" to go on with them in the
            next one, as FastEstimator does; "flush" to update with their average; "drop" to
            forget them. An opening that is left by an error carries them, and so does a loop over
            `fastnet.steps` or `iter_transform` that is left before its loader's end.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If the model has mixed precision and `gradients` are given, or `merge_grad` is
            less than 1, or more on several devices; if gradients are to be clipped in both ways, or
            to nothing; if there is no such report, or no such `rest`; in a network also if
            `loss_name` or `gradients` is not one key, or the model's optimizer can only step with a
            closure.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd", model_name="line")
    >>> UpdateOp(model, "loss", clip_norm=1.0, outputs={"grad_norm": "norm", "stepped": "stepped"})
    UpdateOp(loss -> norm, stepped, 'line', mode=train)
    """

    # what the framework's update is made of; `defer` is read in each step
    _made_of = ("model", "loss_name", "gradients", "merge_grad", "clip_norm", "clip_value", "rest")
    resolved_from = (*_made_of, "defer")
    alike_on_ranks = ("merge_grad", "defer", "clip_norm", "clip_value", "rest")
    # of an op that was saved by an earlier version
    clip_norm: float | None = None
    clip_value: float | None = None
    rest: str = "carry"
    _reports: tuple[str, ...] = ()

    def __init__(
        self,
        model: Model,
        loss_name: str | None,
        gradients: str | None = None,
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        merge_grad: int = 1,
        defer: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        outputs: Mapping[Literal["grad_norm", "stepped"], str] | None = None,
        rest: Literal["carry", "flush", "drop"] = "carry",
    ) -> None:
        reports = _read_reports(model, outputs)
        super().__init__(
            inputs=loss_name if gradients is None else gradients,
            outputs=list(reports.values()) or None,
            mode=mode,
            ds_id=ds_id,
        )
        name = name_of(model)
        require_built("UpdateOp", model)
        if loss_name is not None and not isinstance(loss_name, str):
            raise _not_one_key(model, "loss_name", loss_name)
        if gradients is not None and fact(model, "mixed_precision"):
            raise ValueError(
                f"UpdateOp of '{name}' is given the gradients '{gradients}', but the model has "
                "mixed precision, where the loss is scaled before its gradients are taken. Leave "
                "`gradients` out, or build the model with mixed_precision=False."
            )
        if not is_int(merge_grad) or merge_grad < 1:
            raise ValueError(
                f"UpdateOp of '{name}' has merge_grad={shorten(merge_grad)}; it is an int, and the "
                "least is 1."
            )
        _check_clipping(name, clip_norm, clip_value)
        if rest not in RESTS:
            raise ValueError(
                f"UpdateOp of '{name}' has rest={shorten(rest)}; it is one of {list(RESTS)}."
            )
        names = fact(model, "loss_name")
        if isinstance(names, set):
            names.update(to_set(loss_name))
        elif names is None:
            # what somebody has put there since is not touched: only others read it
            put_fact(model, "loss_name", to_set(loss_name))
        self.model = model
        self.loss_name = loss_name
        self.gradients = gradients
        self.merge_grad = merge_grad
        self.defer = defer
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.rest = rest
        self._reports = tuple(reports)
        self.retain_graph = False
        self._update = _make_update(self)
        self._settled = self._settings()

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, and get ready to update the model it has now.

        Gradients that were added up so far stay, if the model is the same.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        was, now = self._settled, self._settings()
        if was == now:
            return
        made: UpdateOp = UpdateOp(**now)
        if any(was[one] != now[one] for one in ("loss_name", "gradients")):
            self._put_names(made.inputs, self.outputs, self.mode, self.ds_id)
        former = self._update
        self._update = _make_update(self)
        if was["model"] is now["model"] and self.merge_grad > 1:
            self._update.set_merged(*former.merged())
        self._settled = now

    def check_keys(self) -> None:
        """Refuse other than one loss and one key of gradients, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        # what else there may be the constructor refuses
        if self.loss_name is None:
            raise _not_one_key(self.model, "loss_name", self.loss_name)
        if isinstance(self.gradients, (list, tuple, set)):
            raise _not_one_key(self.model, "gradients", self.gradients)
        if len(self.outputs) != len(self._reports):
            raise ValueError(
                f"UpdateOp of '{name_of(self.model)}' tells of {list(self._reports)}, but its "
                f"outputs are {list(self.outputs)}. Make it with a key for each."
            )
        for optimizer in every_optimizer_of(self.model):
            _refuse_closure(self.model, optimizer)

    def updater(self) -> ModelUpdate:
        """Return what updates the model; another one takes its place when the op is settled."""
        return self._update

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._made_of}

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return {self.model}

    def get_fe_loss_keys(self) -> set[str]:
        """Return the key of the loss."""
        return to_set(self.loss_name)

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Read, or set, whether the graph is kept for a later op's gradients.

        Args:
            retain: The new setting, or None to leave it.

        Returns:
            The setting.
        """
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    def forward(self, data: Any, state: State) -> Any:
        """Update the model, or put the update off if the op was made so.

        Args:
            data: The loss, or the list of gradients.
            state: The step's context.

        Returns:
            What the op tells of itself, a list with a value for each output; None without outputs.
        """
        return self._run()(data, state, self, False, self.retain_graph)

    def told_settings(self) -> list[str]:
        """Say what the op does in a step besides taking gradients, for `explain`."""
        told = []
        if self.merge_grad > 1:
            rest = {"carry": "", "flush": ", the rest flushed", "drop": ", the rest dropped"}
            told.append(f"averages {self.merge_grad} steps{rest[self.rest]}")
        if self.clip_norm is not None:
            told.append(f"clips to the norm {self.clip_norm:g}")
        if self.clip_value is not None:
            told.append(f"clips to the value {self.clip_value:g}")
        return told

    def _run(self, followers: Sequence[Callable[..., None]] = ()) -> Callable[..., Any]:
        """Return what updates, in all that it does."""
        extras = self._extras(followers)
        return self._update.with_extras(extras) if extras.are_any() else self._update

    def _extras(self, followers: Sequence[Callable[..., None]]) -> Extras:
        extras = Extras(self.clip_norm, self.clip_value, self._reports)
        return extras.followed_by(followers)

    def ending(self, followers: Sequence[Callable[..., None]] = ()) -> Callable[[], None] | None:
        """Return what is to be done when an opening for training is left; None for nothing.

        Args:
            followers: What follows the update in the network.
        """
        if self.merge_grad == 1 or self.rest == "carry":
            return None
        if self.rest == "drop":
            return self._update.drop
        return partial(self._update.flush, self._extras(followers))

    def state_dict(self) -> dict[str, Any]:
        """Return what the op remembers from step to step, to save it in a checkpoint.

        Returns:
            Under "merged" of how many steps gradients were added up since the last update; under
            "gradients" their sums, in the order of the model's trainable parameters (in torch
            followed by others that its optimizer updates), with None for those that have none. In
            torch these are tensors of the parameters' shapes, dtypes and devices, which
            ``torch.load`` reads with its defaults; in TensorFlow arrays, of float32 for bfloat16.
        """
        merged, gradients = self._update.merged()
        return {"merged": merged, "gradients": gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: What the op, or another one like it, remembered; arrays may stand for tensors.

        Raises:
            ValueError: If it is none, if it has not one gradient of the same shape for each
                trainable parameter, or if it is of more steps than the op merges. The op goes on
                as before then.
        """
        complaint = self._complaint_about(state)
        if complaint:
            raise ValueError(
                f"The state to load {complaint}. Load it into the UpdateOp of the model that it "
                "was saved from."
            )
        self._update.set_merged(int(state["merged"]), state["gradients"])

    def _complaint_about(self, state: Any) -> str | None:
        if not isinstance(state, dict) or not {"merged", "gradients"} <= state.keys():
            return "is none of an UpdateOp: it has no 'merged' and 'gradients'"
        times, gradients = state["merged"], state["gradients"]
        if not is_int(times) or times < 0 or not isinstance(gradients, (list, tuple)):
            return f"has {times!r} merged steps and {type(gradients).__name__} of gradients"
        own = len(self.state_dict()["gradients"])
        if len(gradients) != own:
            return (
                f"has {len(gradients)} gradients, but the model '{name_of(self.model)}' has "
                f"{own} trainable parameters"
            )
        return self._update.complaint_about(times, gradients)

    def abandon(self) -> None:
        """Let go of what a step that failed has left: gradients, and what it has merged.

        It can be called at any time, also if there is nothing.
        """
        self._update.abandon()

    def bind(
        self,
        defer: bool,
        retain_graph: bool,
        followers: Sequence[Callable[..., None]] = (),
    ) -> Forward | None:
        """Return a forward with the settings that a network has for the op, which keeps its own.

        Args:
            defer: Whether the network wants the update after its last op; the op's own `defer`
                holds too.
            retain_graph: Whether a later op takes gradients of the same graph.
            followers: What is to be called after each step that the optimizer has taken.

        Returns:
            What to call instead of `forward`, or None where that was overridden, be it by a derived
            class, in the class itself, or on this op.
        """
        if is_overridden(self, _FORWARD):
            return None
        return partial(self._run(followers), op=self, defer=defer, retain_graph=retain_graph)


# as it is here, whatever is put into its place
_FORWARD = UpdateOp.forward


def _not_one_key(model: Model, setting: str, given: object) -> ValueError:
    name = name_of(model)
    return ValueError(
        f"UpdateOp of '{name}' reads one key as its {setting}, but got {shorten(given)}."
    )


def _read_reports(model: Model, outputs: Any) -> dict[str, str]:
    """Read which key each report is written to."""
    if outputs is None:
        return {}
    name = name_of(model)
    if not isinstance(outputs, Mapping):
        raise ValueError(
            f"UpdateOp of '{name}' writes what it tells of itself under outputs such as "
            f"{{'grad_norm': 'norm'}}, a mapping, but got {shorten(outputs)}."
        )
    for report in outputs:
        if report not in REPORTS:
            near = nearest_name(str(report), REPORTS)
            raise ValueError(
                f"UpdateOp of '{name}' cannot tell of {shorten(report)}."
                f"{f' Did you mean {near!r}?' if near else ''} What it tells of are "
                f"{list(REPORTS)}."
            )
    return dict(outputs)


def _check_clipping(name: str, norm: Any, value: Any) -> None:
    for setting, most in (("clip_norm", norm), ("clip_value", value)):
        if most is not None and (isinstance(most, bool) or not is_number(most) or not most > 0):
            raise ValueError(
                f"UpdateOp of '{name}' has {setting}={shorten(most)}; it is a number above 0, or "
                "None."
            )
    if norm is not None and value is not None:
        raise ValueError(
            f"UpdateOp of '{name}' has both clip_norm={shorten(norm)} and "
            f"clip_value={shorten(value)}, which do not go together. Leave one of them out."
        )


def _refuse_closure(model: Model, optimizer: Any) -> None:
    """Refuse an optimizer whose step evaluates the model several times."""
    step = getattr(optimizer, "step", None)
    if not callable(step):
        return
    closure = signature(step).parameters.get("closure")
    if closure is None or closure.default is not Parameter.empty:
        return
    kind = type(optimizer).__name__
    raise ValueError(
        f"UpdateOp of '{name_of(model)}' takes steps of the model's optimizer, {kind}, which needs "
        "a closure that works out the loss several times a step, where a network's step does so "
        "once. Build the model with another optimizer, or let the network give what the loss is "
        f"made of and call `{kind}.step(closure)` in a loop of your own, without an UpdateOp."
    )


def _make_update(op: UpdateOp) -> ModelUpdate:
    framework = framework_of(op.model)
    if framework is None:
        raise ValueError(
            f"UpdateOp updates a torch.nn.Module or a Keras model, but got "
            f"{type(op.model).__name__}, of no known framework."
        )
    made: ModelUpdate = framework_named(framework).load("update")(op)
    return made
