"""The op that updates a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from fastnet.backend.facts import fact, name_of, put_fact
from fastnet.backend.framework import framework_of
from fastnet.errors import shown
from fastnet.frameworks import framework_named
from fastnet.op.checks import is_int
from fastnet.op.settings import is_overridden
from fastnet.op.tensorop.model.held_model import HoldsModel, require_built
from fastnet.op.tensorop.model.model_update import ModelUpdate
from fastnet.types import Forward, Model, State, Tensor
from fastnet.util import to_set


class UpdateOp(HoldsModel):
    """Updates a model's weights by a loss.

    In torch, UpdateOps that stand last in a row take their optimizers' steps after the last of them
    has its gradients, so that models which depend on each other can be updated in one step. In
    TensorFlow each takes its own at once, as its tape still has the values from before.

    A Keras model's own losses, such as regularizers, are added to the loss.

    Args:
        model: A model from `fastnet.build`.
        loss_name: The key of the loss; a loss with elements counts by its mean.
        gradients: The key of ready gradients, a list with one for each trainable parameter. None
            to take the gradients of the loss, which mixed precision needs.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        merge_grad: How many steps' gradients to average for one update.
        defer: Whether to take the optimizer's step after the network's last op.

    Raises:
        AssertionError: If the model was not built.
        ValueError: If the model has mixed precision and `gradients` are given, or `merge_grad` is
            less than 1, or more on several devices; in a network also if `loss_name` or `gradients`
            is not one key.
    """

    # what the framework's update is made of; `defer` is read in each step
    _made_of = ("model", "loss_name", "gradients", "merge_grad")
    settled_by = (*_made_of, "defer")
    alike_on_ranks = ("merge_grad", "defer")

    def __init__(
        self,
        model: Model,
        loss_name: str | None,
        gradients: str | None = None,
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        merge_grad: int = 1,
        defer: bool = False,
    ) -> None:
        super().__init__(
            inputs=loss_name if gradients is None else gradients, mode=mode, ds_id=ds_id
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
                f"UpdateOp of '{name}' has merge_grad={shown(merge_grad)}; it is an int, and the "
                "least is 1."
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
        self.retain_graph = False
        self._update = _make_update(self)
        self._settled = self._settings()

    def settle(self, changed: Sequence[str] = ()) -> None:
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
        made = UpdateOp(**now)
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

    def forward(self, data: Tensor | list[Tensor], state: State) -> None:
        """Update the model, or put the update off if the op was made so.

        Args:
            data: The loss, or the list of gradients.
            state: The step's context.
        """
        self._update(data, state, self, False, self.retain_graph)

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

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return a forward with the settings that a network has for the op, which keeps its own.

        Args:
            defer: Whether the network wants the update after its last op; the op's own `defer`
                holds too.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What to call instead of `forward`, or None where that was overridden, be it by a derived
            class, in the class itself, or on this op.
        """
        if is_overridden(self, _FORWARD):
            return None
        return partial(self._update, op=self, defer=defer, retain_graph=retain_graph)


# as it is here, whatever is put into its place
_FORWARD = UpdateOp.forward


def _not_one_key(model: Model, setting: str, given: object) -> ValueError:
    name = name_of(model)
    return ValueError(
        f"UpdateOp of '{name}' reads one key as its {setting}, but got {shown(given)}."
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
