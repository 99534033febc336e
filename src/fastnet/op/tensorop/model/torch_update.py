"""An update of a torch model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fastnet.backend.facts import holder_of, name_of
from fastnet.backend.scheduled import every_optimizer_of
from fastnet.backend.torch._internals import OVERWRITTEN
from fastnet.backend.torch.engines import engine_of
from fastnet.backend.torch.gradient_isolation import (
    TRAINED,
    cleared_gradients,
    isolated_backward,
)
from fastnet.backend.torch.gradients import (
    DeferredStep,
    apply_gradients,
    backward,
    drop_gradients,
    parameters_of,
    step_optimizer,
    trainable,
)
from fastnet.backend.torch.graph import reached
from fastnet.errors import describe_op
from fastnet.op.tensorop.model.model_update import Extras, ModelUpdate, Updates
from fastnet.op.tensorop.model.torch_extras import ExtraStep, take_with
from fastnet.types import State
from fastnet.util.formatting import format_ds_ids
from fastnet.util.warnings import warn


class Merged(NamedTuple):
    """Gradients that were added up: how many times, and the sums. It is replaced, never changed."""

    times: int
    sums: dict[torch.nn.Parameter, torch.Tensor]


class _Settling:
    """What a step has merged, on its way to count: once nothing can fail any more.

    Args:
        update: The update.
        merged: What counts from then on.
        deferred: The functions that the step has put off, by the names of what they are for.
    """

    def __init__(
        self, update: TorchUpdate, merged: Merged, deferred: dict[str, list[Any]] | None
    ) -> None:
        self._update = update
        self._merged = merged
        self._deferred = deferred

    def __call__(self) -> None:
        """Let it count, or wait until all that was put off has run."""
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            self._update.settle(self._merged)
        else:
            deferred[_key_of(self._update)] = [self]

    def discard(self) -> None:
        """Forget it, because the step failed."""
        self._update.settle(None)


class TorchUpdate(ModelUpdate):
    """What an UpdateOp does with a torch model.

    Args:
        op: The op.

    Raises:
        ValueError: If `merge_grad` is more than 1 in DataParallel on several GPUs.
    """

    trained = "parameters"
    _extra = ExtraStep

    def __init__(self, op: Updates) -> None:
        super().__init__(op, torch.cuda.device_count() if engine_of(op.model) == "dp" else 1)
        self._named = holder_of(op.model, "model_name")
        self._merged = Merged(0, {})
        self._unsettled: Merged | None = None
        self._opened: State | None = None
        # the models that are trained beside this one, in the network that ran it last
        self._others: list[torch.nn.Module] = []

    def __call__(
        self,
        data: Any,
        state: State,
        op: Updates,
        defer: bool,
        retain_graph: bool,
        take: Callable[[Any, str], None] = step_optimizer,
    ) -> None:
        """Take gradients, and update or put the update off.

        Args:
            data: The loss, or a list of gradients.
            state: The step's context.
            op: The op, or a copy of it, with a `defer` of its own.
            defer: Whether to put the optimizer's step off, whatever the op says.
            retain_graph: Whether a later op takes gradients of the same graph.
            take: What takes the optimizer's step, given it and the name of the model.

        Raises:
            ValueError: If the model has no optimizer in this epoch, or nothing to train.
            RuntimeError: If the gradients cannot be taken.
        """
        if state["warmup"]:
            return
        optimizer = getattr(self._optimized, "current_optimizer", None) or self._optimizer()
        self._require_trainable(optimizer)
        self._others = [one for one in state.get(TRAINED, ()) if one is not self._model]
        merged = None
        try:
            if self._merge > 1:
                merged = self._merge_gradients(data, optimizer, retain_graph, state)
                if merged.times:
                    self._settle_later(merged, state)
                    return
            elif self._given:
                parameters = trainable(self._model)
                apply_gradients(parameters, self.checked(data, parameters))
            else:
                self.add_gradients(data, optimizer, retain_graph)
            if state is not self._opened:
                grads = [one.grad for one in parameters_of(self._model, optimizer)]
                self._look(data, optimizer, grads, state)
        except BaseException as error:
            self.abandon()
            self._explain(error, data)
            raise
        deferred = state["deferred"]
        name = self._named.model_name
        if defer or op.defer:
            if merged is not None:
                self._unsettled = merged
                deferred[_key_of(self)] = [_Settling(self, merged, None)]
            # The first update of a model decides when its optimizer takes its step: where models
            # share parameters, the first step uses their gradients.
            deferred[name] = [DeferredStep(optimizer, name, take)]
            return
        if merged is not None:
            self.settle(merged)
        take(optimizer, name)
        if deferred:
            # the gradients that an earlier update put off have just been used
            deferred.pop(name, None)

    @property
    def merges(self) -> int:
        """The number of steps whose gradients make one update."""
        return int(self._merge)

    @property
    def standing(self) -> Merged:
        """What was merged since the last update; `settle` puts something else there."""
        return self._merged

    def drop(self) -> None:
        """Forget what was merged since the last update."""
        self._merged = Merged(0, {})

    def flush(self, extras: Extras) -> None:
        """Update with the average of what was merged since the last update, if anything was.

        Args:
            extras: What is done besides.
        """
        times, sums = self._merged
        if not times:
            return
        optimizer = self._optimizer()
        self._merged = Merged(0, {})
        try:
            everything = parameters_of(self._model, optimizer)
            counted = [parameter for parameter in everything if parameter in sums]
            self.apply_merged(counted, sums, times)
        except BaseException:
            self.abandon()
            raise
        take_with(extras, optimizer, self._named.model_name)

    def __getstate__(self) -> dict[str, Any]:
        # torch copies an optimizer without what others have put on it
        optimizers = every_optimizer_of(self._model)
        scalers = [(one, getattr(one, "scaler", None)) for one in optimizers]
        # an opening is of one network, and the models beside this one are those of a step
        return {**vars(self), "_opened": None, "_others": [], "scalers": scalers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for optimizer, scaler in state.pop("scalers"):
            optimizer.scaler = scaler
        vars(self).update(state)

    def abandon(self) -> None:
        """Let go of what a step that failed has left, wherever it did; there may be nothing.

        No gradient stays on what the model has and its optimizer updates, and what the step has
        merged does not count.
        """
        self._unsettled = None
        optimizer = getattr(self._optimized, "current_optimizer", None)
        for parameter in parameters_of(self._model, optimizer):
            parameter.grad = None
        if optimizer is not None:
            # it may hold on to more than gradients
            drop_gradients(optimizer)

    def settle(self, merged: Merged | None) -> None:
        """Make what a step has merged count, or forget it.

        Args:
            merged: What counts from now on, or None to go on with what counted before the step.
        """
        self._unsettled = None
        if merged is not None:
            self._merged = merged

    def merged(self) -> tuple[int, list[Any]]:
        """Return the gradients that were added up since the last update.

        Returns:
            Of how many steps, and the sum for each trainable parameter, of the model and then of
            its optimizer: a tensor of its own, or None.
        """
        sums = [self._merged.sums.get(parameter) for parameter in self.trained_now()]
        return self._merged.times, [None if one is None else one.clone() for one in sums]

    def complaint_about(self, times: int, gradients: Sequence[Any]) -> str | None:
        """Return why gradients cannot be gone on from.

        Args:
            times: Of how many steps they are said to be.
            gradients: What is said to be the sums, one for each trainable parameter.

        Returns:
            What is wrong, to stand behind "The state to load"; None if nothing is.
        """
        if times >= self._merge:
            return f"is of {times} merged steps, but the op has merge_grad={self._merge}"
        for place, (parameter, gradient) in enumerate(
            zip(self.trained_now(), gradients, strict=True)
        ):
            if gradient is None:
                continue
            try:
                given = torch.as_tensor(gradient)
            except Exception:
                return f"has {type(gradient).__name__} as gradient {place}"
            if given.shape != parameter.shape or not torch.can_cast(given.dtype, parameter.dtype):
                return (
                    f"has gradient {place} of the shape {tuple(given.shape)} and {given.dtype}, "
                    f"for a parameter of the shape {tuple(parameter.shape)} and {parameter.dtype}"
                )
            if given.is_quantized or given.is_meta:
                return f"has gradient {place} without numbers to add to"
        return None

    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        """Go on from gradients that were added up before.

        Args:
            times: Of how many steps.
            gradients: What `merged` gave, one for each trainable parameter.
        """
        self._merged = Merged(
            times,
            {
                parameter: torch.as_tensor(gradient).to(
                    parameter.device, parameter.dtype, copy=True
                )
                for parameter, gradient in zip(self.trained_now(), gradients, strict=True)
                if gradient is not None
            },
        )

    def trained_now(self) -> list[torch.nn.Parameter]:
        """List what can be trained, for a derived class to say otherwise.

        Returns:
            The parameters of the model, and then what else its optimizer updates.
        """
        optimizer = getattr(self._optimized, "current_optimizer", None)
        return [one for one in parameters_of(self._model, optimizer) if one.requires_grad]

    def _require_trainable(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    return
        if not any(parameter.requires_grad for parameter in self._model.parameters()):
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its parameters "
                "has requires_grad. Unfreeze some of them, or take the UpdateOp out."
            )

    def _settle_later(self, merged: Merged, state: State) -> None:
        # what a step that fails has merged must not count, so it counts at the step's end
        self._unsettled = merged
        deferred = state["deferred"]
        deferred[_key_of(self)] = [_Settling(self, merged, deferred)]

    def add_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Add the gradients of the loss to those that parameters hold.

        Args:
            data: The loss.
            optimizer: The optimizer in force.
            retain_graph: Whether a later op takes gradients of the same graph.

        Raises:
            ValueError: If the loss is no tensor.
            RuntimeError: If the gradients cannot be taken.
        """
        loss = self._loss(data, optimizer)
        if self._others:
            isolated_backward(loss, retain_graph, self._model, optimizer, self._others)
        else:
            backward(loss, None, retain_graph)

    def _loss(self, loss: Any, optimizer: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor):
            raise self._no_loss(loss)
        if loss.dim():
            loss = loss.mean()
        scaler = getattr(optimizer, "scaler", None)
        scaled: torch.Tensor = loss if scaler is None else scaler.scale(loss)
        return scaled

    def _merge_gradients(
        self, data: Any, optimizer: Any, retain_graph: bool, state: State
    ) -> Merged:
        """Add gradients up; once there are enough, hand their averages to the parameters."""
        if self._given:
            parameters = trainable(self._model)
            gradients = self.checked(data, parameters)
        else:
            parameters = self.trained_now()
            gradients = self._gradients(data, optimizer, parameters, retain_graph)
        if state is not self._opened:
            self._look(data, optimizer, gradients, state)
        before = self._unsettled or self._merged
        sums = dict(before.sums)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                # a sum of our own, whatever becomes of what was given
                gradient = gradient.detach()
                total = sums.get(parameter)
                sums[parameter] = gradient.clone() if total is None else total + gradient
        if before.times + 1 < self._merge:
            return Merged(before.times + 1, sums)
        everything = parameters_of(self._model, optimizer)
        counted = [parameter for parameter in everything if parameter in sums]
        if len(counted) < len(sums):
            self._warn_lost(len(sums) - len(counted))
        # More steps than `merge_grad` were merged if it was lowered meanwhile.
        self.apply_merged(counted, sums, before.times + 1)
        return Merged(0, {})

    def apply_merged(
        self,
        counted: Sequence[torch.nn.Parameter],
        sums: Mapping[torch.nn.Parameter, torch.Tensor],
        times: int,
    ) -> None:
        """Hand the averages of merged steps to the parameters.

        Args:
            counted: The parameters that have sums.
            sums: The sums.
            times: Of how many steps.
        """
        # a parameter may be of another type than when it was added up
        apply_gradients(counted, [(sums[one] / times).to(one) for one in counted])

    def _gradients(
        self,
        data: Any,
        optimizer: Any,
        parameters: Sequence[torch.nn.Parameter],
        retain_graph: bool,
    ) -> list[torch.Tensor | None]:
        """Take gradients apart from those that parameters hold, as an update that waits leaves."""
        with cleared_gradients(parameters):
            self.add_gradients(data, optimizer, retain_graph)
            return [parameter.grad for parameter in parameters]

    def checked(self, gradients: Any, parameters: Sequence[torch.nn.Parameter]) -> Sequence[Any]:
        """Check gradients that the update was given.

        Args:
            gradients: The gradients.
            parameters: What they are of.

        Returns:
            The gradients to go on with.

        Raises:
            ValueError: If there is not one for each parameter.
        """
        self._require_gradients(gradients, len(parameters))
        checked: Sequence[Any] = gradients
        return checked

    def _explain(self, error: BaseException, data: Any) -> None:
        if not isinstance(error, RuntimeError):
            return
        if isinstance(data, torch.Tensor) and not data.requires_grad:
            raise RuntimeError(
                f"The loss '{self._op.loss_name}' has no graph to take the gradients of "
                f"'{name_of(self._model)}' from: nothing that it was made of needs gradients. "
                "Make it from the output of a ModelOp with gradients=True, outside of no_grad."
            ) from error
        if str(error).startswith(OVERWRITTEN):
            raise RuntimeError(
                f"The gradients of '{name_of(self._model)}' need variables that an earlier "
                "update in this step has overwritten. Pass defer=True to the UpdateOps of models "
                "that work together with this one."
            ) from error

    def _look(
        self, data: Any, optimizer: Any, gradients: Sequence[torch.Tensor | None], state: State
    ) -> None:
        """Warn, in the first step of an opening, if the loss has nothing to do with the model."""
        self._opened = state
        if all(gradient is None for gradient in gradients) and not self._reaches(data, optimizer):
            name, ds_ids = name_of(self._model), getattr(self._op, "ds_id", None)
            limit = f", which {format_ds_ids(ds_ids)}" if ds_ids else ""
            warn(
                f"{describe_op(self._op)} of model '{name}'{limit}: the loss "
                f"'{self._op.loss_name}' has no gradients for any parameter of the model, as its "
                f"graph does not reach it. Make the loss from the output of a ModelOp of '{name}', "
                "in the same step."
            )

    def _warn_lost(self, count: int) -> None:
        warn(
            f"UpdateOp of '{name_of(self._model)}' has added up gradients of {count} "
            "parameters that neither the model nor its optimizer has any more: these are lost. "
            "Replace parameters right after an update.",
        )

    def _reaches(self, data: Any, optimizer: Any) -> bool:
        """Return whether gradients came, though a hook may have taken them."""
        if self._given:
            return False
        leaves, hidden = reached(data)
        own = set(map(id, parameters_of(self._model, optimizer)))
        return hidden or any(id(leaf) in own for leaf in leaves)


def _key_of(update: TorchUpdate) -> str:
    return f"merge_grad of {id(update)}"
