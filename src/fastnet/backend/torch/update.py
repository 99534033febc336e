"""Updates torch models: backward, merge, and then clip and step, now or after the last op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from fastnet._execute import DEFERRED, UNDO
from fastnet.backend.model_metadata import check_optimizer, every_optimizer_of, holder_of, name_of
from fastnet.backend.torch._internals import OVERWRITTEN
from fastnet.backend.torch.backward import backward, isolated_backward
from fastnet.backend.torch.optimizer_state import names_of
from fastnet.backend.torch.optimizer_step import (
    PendingStep,
    add_reports_to_deferred_step,
    clear_model_gradients,
)
from fastnet.backend.torch.parameters import (
    accumulate_gradients,
    gradients_set_aside,
    graph_leaves,
    is_about_parameter,
    model_and_optimizer_parameters,
    trainable_parameters,
)
from fastnet.backend.torch.wrappers import parallel_type
from fastnet.backend.update import Followers, SavedWindow, Update
from fastnet.errors import SECOND_ORDER_ADVICE, add_note, describe_op
from fastnet.types import State
from fastnet.util.formatting import format_ds_ids
from fastnet.util.warnings import warn

TRAINED = "trained_models"
"""The key of the session's state that lists the trained models.

It is there if there are several, or if they have mixed precision."""


class Window(NamedTuple):
    """The number of merged steps, and the sums of their unscaled gradients and of their weights.

    Immutable: each step replaces it, so that a failed step can restore the previous one.
    """

    steps: int
    sums: Mapping[Parameter, Tensor]
    weight: Tensor | None = None


class TorchUpdate(Update):
    """Updates a torch model in the sequence that `UpdateOp` describes.

    It computes and merges the gradients; a `PendingStep` clips them and lets the optimizer step.
    `merge_count` is the number of merged steps so far, in all windows.

    `ParallelUpdate` derives from it for models that several processes train. It overrides the
    public methods that compute and average gradients and list parameters, and reshards an
    FSDP2 model before `_flush`, and before `_run` with given gradients.
    """

    joins_deferred = True

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        is_replicated = parallel_type(op.model) == "dp" and torch.cuda.device_count() > 1
        if self._always_merges and is_replicated:
            settings, alternative = f"merge_grad={op.merge_grad}", "merge_grad=1"
            if self._weighted:
                settings += f" and weight={op.weight!r}"
                alternative += " without a weight"
            raise ValueError(
                f"UpdateOp of '{name_of(op.model)}' has {settings}, which is not supported on "
                f"several devices. Use {alternative}."
            )
        self._name_holder = holder_of(op.model, "model_name")
        self.window = Window(0, {})
        self.merge_count = 0
        self._session_state: State | None = None
        self._is_reach_checked = False
        self._checked_optimizer: Any = None
        self._other_models: list[Module] = []

    @property
    def is_merging(self) -> bool:
        """Whether gradients are added to the sums of earlier steps."""
        return self._always_merges or self.window.steps > 0

    def _report_warmup(self, loss_or_gradients: Any) -> list[Any] | None:
        return list(self._new_reports(loss_or_gradients).values()) if self._reports else None

    def on_session(self, state: State) -> None:
        """Prepare for the steps of a session, before the first one; `state` is the session's."""
        self._session_state = state
        self._is_reach_checked = False
        trained = state.get(TRAINED, ())
        self._other_models = [model for model in trained if model is not self._model]

    def _run(
        self,
        data: Any,
        weight: Any,
        state: State,
        defer: bool,
        retain_graph: bool,
        followers: Followers,
    ) -> list[Any] | None:
        if state is not self._session_state:
            self.on_session(state)
        reports = self._new_reports(data) if self._reports else None
        values = None if reports is None else list(reports.values())
        optimizer = self.optimizer()
        self._check_trainable(optimizer)
        condition: Tensor | None = None
        try:
            if self.is_merging:
                self._merge_gradients(data, weight, optimizer, retain_graph, state)
                if self.window.steps < self.window_length:
                    if reports and defer:
                        needs_norm = self._step_settings.needs_norm
                        add_reports_to_deferred_step(
                            state[DEFERRED], self._name_holder.model_name, reports, needs_norm
                        )
                    return values
                condition = self._apply_merged(optimizer)
            elif self._gradients_are_given:
                parameters = trainable_parameters(self._model)
                accumulate_gradients(parameters, self.prepare_given(data, parameters))
            else:
                self.add_gradients(data, optimizer, retain_graph)
                if not self._is_reach_checked:
                    gradients = (parameter.grad for parameter in self._model.parameters())
                    self._check_reached(data, gradients)
        except BaseException as error:
            self._explain_failure(error, data)
            raise
        self._step_or_defer(optimizer, condition, state, defer, followers, reports)
        return values

    def _step_or_defer(
        self,
        optimizer: Any,
        condition: Tensor | None,
        state: State,
        defer: bool,
        followers: Followers,
        reports: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take the optimizer's step, now or later, with the gradients of deferred updates."""
        is_window_noted = self in state.get(UNDO, ())
        step = PendingStep(
            optimizer,
            self._model,
            self._name_holder.model_name,
            self._step_settings,
            condition,
            followers,
            reports,
            on_end=(partial(self._note_used_window, state),) if is_window_noted else (),
        )
        step.take_or_defer(defer, state[DEFERRED])

    def _note_window(self, state: State) -> None:
        """Note the window that a failed step of the network restores, unless one is noted."""
        if UNDO in state:
            state[UNDO].setdefault(self, partial(self._restore_window, self.window))

    def _note_used_window(self, state: State) -> None:
        """Note that the optimizer has used the merged gradients, which cannot be undone.

        A failed step then restores an empty window, which drops what was merged afterwards.
        """
        state[UNDO][self] = partial(self._restore_window, Window(0, {}))

    def _restore_window(self, window: Window) -> None:
        self.window = window

    def window_steps(self) -> int:
        """Return the number of steps merged since the last update."""
        return self.window.steps

    def _flush(self, followers: Followers, state: State, defer: bool) -> None:
        optimizer = self.optimizer()
        self._note_window(state)
        condition = self._apply_merged(optimizer)
        self._step_or_defer(optimizer, condition, state, defer, followers)

    def clear_gradients(self) -> None:
        """Clear the gradients that a failed update has left."""
        clear_model_gradients(self._model)

    def prepare_given(self, gradients: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return the given gradients as they are accumulated; raise a ValueError if they misfit."""
        return self.check_gradients(gradients, parameters)

    def add_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate the gradients of the loss in `.grad`, apart from those of other models."""
        loss = self.scaled_loss(data, optimizer)
        if self._other_models:
            isolated_backward(loss, retain_graph, self._model, optimizer, self._other_models)
        else:
            backward(loss, None, retain_graph)

    def scaled_loss(self, loss: Any, optimizer: Any) -> Tensor:
        """Return the mean of the loss, scaled in mixed precision."""
        if not isinstance(loss, Tensor):
            raise self.not_a_loss(loss)
        if loss.dim():
            loss = loss.mean()
        scaler = getattr(optimizer, "scaler", None)
        scaled: Tensor = loss if scaler is None else scaler.scale(loss)
        return scaled

    def _merge_gradients(
        self, data: Any, weight: Any, optimizer: Any, retain_graph: bool, state: State
    ) -> None:
        """Add the step's gradients, multiplied by its weight if it has one, to the sums."""
        if self._gradients_are_given:
            parameters = trainable_parameters(self._model)
            gradients = self.prepare_given(data, parameters)
        else:
            parameters = self.trained_parameters()
            gradients = self.separate_gradients(data, optimizer, parameters, retain_graph)
            if not self._is_reach_checked:
                self._check_reached(data, gradients)
        # The sums are unscaled, because the scale and the optimizer may change before the update.
        gradients = unscale_gradients(gradients, getattr(optimizer, "scaler", None))
        steps, before, total_weight = self.window
        if self._weighted:
            weight = self._check_weight(weight)
            gradients = _multiply_by_weight(gradients, weight)
            if total_weight is not None:
                weight = total_weight.to(weight.device) + weight
            total_weight = weight
        sums = dict(before)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                # Torch 2.14 cannot trace `detach` of a sparse gradient, whose sum is refused later.
                gradient = gradient.detach() if gradient.requires_grad else gradient
                sums[parameter] = _add(sums.get(parameter), gradient)
        self._note_window(state)
        self.window = Window(steps + 1, sums, total_weight)
        self.merge_count += 1

    def _check_weight(self, weight: Any) -> Tensor:
        """Return a weight as a scalar: int64, float32 for halves, or of its floating dtype."""
        try:
            scalar = torch.as_tensor(weight).detach()
        except (TypeError, ValueError, RuntimeError):
            raise self.not_a_weight(weight) from None
        if scalar.numel() != 1 or scalar.is_complex():
            raise self.not_a_weight(weight)
        # Sums of halves would soon lose the last digits.
        dtype = torch.float32 if scalar.dtype.itemsize < 4 else scalar.dtype
        return scalar.reshape(()).to(dtype if scalar.is_floating_point() else torch.int64)

    def separate_gradients(
        self, data: Any, optimizer: Any, parameters: Sequence[Parameter], retain_graph: bool
    ) -> list[Tensor | None]:
        """Compute gradients apart from those in `.grad`, which a deferred step may need."""
        with gradients_set_aside(parameters):
            self.add_gradients(data, optimizer, retain_graph)
            return [parameter.grad for parameter in parameters]

    def _apply_merged(self, optimizer: Any) -> Tensor | None:
        """Put the average of the merged gradients into `.grad`, and start an empty window.

        Returns:
            Whether there is anything to update with, a scalar; None if there always is.
        """
        steps, sums, weight = self.window
        self.window = Window(0, {})
        known = self.updated_parameters()
        if lost := len(sums.keys() - known):
            warn(
                f"UpdateOp of '{name_of(self._model)}' has merged gradients of {lost} parameters "
                "that neither the model nor its optimizer has any more: these are lost. Replace "
                "parameters right after an update.",
            )
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None:
            # The scaler unscales them before the step, and finds those that have overflowed.
            sums = {
                parameter: scaler.scale(total.to(parameter.device))
                for parameter, total in sums.items()
            }
        if weight is None:
            # There are more steps than `merge_grad` if it was lowered meanwhile.
            self.apply_averages(known, sums, steps)
            return None
        weight = self.average_over_ranks(weight)
        has_weight = weight != 0
        # If all weights are 0, no step is taken, so the averages may be anything.
        self.apply_averages(known, sums, torch.where(has_weight, weight, 1))
        return has_weight

    def average_over_ranks(self, weight: Tensor) -> Tensor:
        """Return the average of a weight over the processes that train the model together."""
        return weight

    def apply_averages(
        self,
        parameters: Sequence[Parameter],
        sums: Mapping[Parameter, Tensor],
        divisor: int | Tensor,
    ) -> None:
        """Accumulate the averages of merged gradients in `.grad`."""
        merged = [parameter for parameter in parameters if parameter in sums]
        # A parameter may have changed its dtype since its gradients were merged.
        averages = [
            (sums[parameter] / _to_device(divisor, parameter)).to(parameter) for parameter in merged
        ]
        accumulate_gradients(merged, averages)

    def _new_reports(self, data: Any) -> dict[str, Tensor]:
        """Make the tensors to report; a step that is taken later fills them in then."""
        device = next((parameter.device for parameter in self._model.parameters()), None)
        unknown = torch.full((), float("nan"), device=device)
        tensors = {
            "grad_norm": unknown,
            "stepped": torch.zeros((), dtype=torch.bool, device=device),
        }
        if "total" in self._reports:
            is_loss = (
                isinstance(data, Tensor)
                and data.is_floating_point()
                and not self._gradients_are_given
            )
            tensors["total"] = data.detach().mean() if is_loss else unknown.clone()
        return {report: tensors[report] for report in self._reports}

    def save_window(self) -> SavedWindow:
        """Return copies of what was merged since the last update."""
        steps, sums, weight = self.window
        gradients = [sums.get(parameter) for parameter in self.window_parameters()]
        copies = [None if gradient is None else gradient.clone() for gradient in gradients]
        return SavedWindow(steps, copies, None if weight is None else weight.item())

    def load_window(self, window: SavedWindow, parameters: Sequence[Any]) -> None:
        """Continue from the result of `save_window`, with the parameters of its gradients."""
        sums = {}
        for parameter, gradient in zip(parameters, window.gradients, strict=True):
            if gradient is not None:
                dtype = _sum_dtype(parameter) if self._weighted else parameter.dtype
                sums[parameter] = torch.as_tensor(gradient).to(parameter.device, dtype, copy=True)
        weight = None
        if window.weight is not None:
            weight = _weight_from(window.weight)
        self.window = Window(window.steps, sums, weight)

    def trained_parameters(self) -> list[Parameter]:
        """List the trainable parameters of the model, then others that its optimizer updates."""
        return [parameter for parameter in self.updated_parameters() if parameter.requires_grad]

    def updated_parameters(self) -> list[Parameter]:
        """List the parameters of the model, then others that its optimizer updates."""
        return model_and_optimizer_parameters(
            self._model, getattr(self._optimizer_holder, "current_optimizer", None)
        )

    def frozen_parameters(self) -> list[Parameter]:
        """List the parameters of the model and its optimizer that are not trainable now."""
        return [parameter for parameter in self.updated_parameters() if not parameter.requires_grad]

    def shares_scaled_gradients(self, other: Update) -> bool:
        """Return whether both train a parameter, and each optimizer has a GradScaler of its own."""
        assert isinstance(other, TorchUpdate)
        scaler, other_scaler = self.scaler(), other.scaler()
        if scaler is None or other_scaler is None or scaler is other_scaler:
            return False
        trained = set(map(id, self.trained_parameters()))
        return any(id(parameter) in trained for parameter in other.trained_parameters())

    def scaler(self) -> Any:
        """Return the GradScaler of the current optimizer; None if there is none that scales."""
        optimizer = getattr(self._optimizer_holder, "current_optimizer", None)
        scaler = getattr(optimizer, "scaler", None)
        return scaler if scaler is not None and scaler.is_enabled() else None

    def has_sum(self, parameter: Parameter) -> bool:
        """Return whether gradients of a parameter have been merged."""
        return parameter in self.window.sums

    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        """Return the names of parameters."""
        return names_of(parameters, self._model)

    def __getstate__(self) -> dict[str, Any]:
        # Copies of an optimizer lose the attributes that torch does not know of.
        scalers = [
            (optimizer, getattr(optimizer, "scaler", None))
            for optimizer in every_optimizer_of(self._model)
        ]
        unset = dict.fromkeys(("_session_state", "_checked_optimizer"))
        return {**vars(self), **unset, "_other_models": [], "scalers": scalers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for optimizer, scaler in state.pop("scalers"):
            optimizer.scaler = scaler
        vars(self).update(state)

    def _check_trainable(self, optimizer: Any) -> None:
        if optimizer is not self._checked_optimizer:
            check_optimizer(self._model, optimizer)
            self._checked_optimizer = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    return
        if not trainable_parameters(self._model):
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its parameters "
                "has requires_grad. Unfreeze some of them, or take the UpdateOp out."
            )

    def _check_reached(self, loss: Tensor, gradients: Iterable[Any]) -> None:
        """Warn in the first step of a session if the loss does not depend on the model."""
        self._is_reach_checked = True
        if any(gradient is not None for gradient in gradients):
            return
        # A hook may have removed the gradients, so ask the graph.
        leaves, may_have_more = graph_leaves(loss)
        parameters = model_and_optimizer_parameters(self._model, self.optimizer())
        ids = set(map(id, parameters))
        if may_have_more or any(id(leaf) in ids for leaf in leaves):
            return
        name, ds_ids = name_of(self._model), getattr(self._op, "ds_id", None)
        limit = f", which {format_ds_ids(ds_ids)}" if ds_ids else ""
        warn(
            f"{describe_op(self._op)} of model '{name}'{limit}: the loss '{self._op.loss_name}' "
            "has no gradients for any parameter of the model, as its graph does not reach it. Make "
            f"the loss from the output of a ModelOp of '{name}', in the same step."
        )

    def _explain_failure(self, error: BaseException, data: Any) -> None:
        """Raise a clearer error for a failed backward pass, or add a note to it."""
        if not isinstance(error, RuntimeError):
            return
        if isinstance(data, Tensor) and not data.requires_grad:
            raise RuntimeError(
                f"The loss '{self._op.loss_name}' has no graph to take the gradients of "
                f"'{name_of(self._model)}' from: nothing that it was made of needs gradients. "
                "Make it from the output of a ModelOp with gradients=True, outside of no_grad. "
                + SECOND_ORDER_ADVICE
            ) from error
        if str(error).startswith(OVERWRITTEN):
            note = f"Raised by the gradients of '{name_of(self._model)}'."
            if is_about_parameter(str(error), [self._model, *self._other_models]):
                note += (
                    " If an earlier update in this step has overwritten the variables, pass "
                    "defer=True to the UpdateOps of models that work together with this one."
                )
            add_note(error, note)


def unscale_gradients(gradients: Sequence[Tensor | None], scaler: Any) -> Sequence[Tensor | None]:
    """Divide gradients by the scale of a GradScaler; None for no scaler."""
    if scaler is None:
        return gradients
    scale_on = _cached_on(lambda device: scaler.scale(torch.ones((), device=device)))
    return [
        None if gradient is None else gradient / scale_on(gradient.device) for gradient in gradients
    ]


def _add(total: Tensor | None, gradient: Tensor) -> Tensor:
    """Add a gradient to a sum, either of which may be sparse."""
    if total is None:
        return gradient.clone()
    # A sum that was loaded is on the device that the parameter was on at that time.
    total = total.to(gradient.device)
    return gradient + total if total.layout is torch.sparse_coo else total + gradient


def _weight_from(number: float) -> Tensor:
    """Return a saved weight as a scalar tensor: int64, float32 if that is exact, or float64."""
    if isinstance(number, int):
        return torch.tensor(number, dtype=torch.int64)
    single = torch.tensor(number, dtype=torch.float32)
    return single if single.item() == number else torch.tensor(number, dtype=torch.float64)


def _multiply_by_weight(gradients: Sequence[Tensor | None], weight: Tensor) -> list[Tensor | None]:
    """Multiply gradients by a weight; those of weight 0 are 0, even where they are NaN."""
    weight_on = _cached_on(weight.to)

    def multiply(gradient: Tensor) -> Tensor:
        factor = weight_on(gradient.device)
        if gradient.layout is not torch.sparse_coo:
            return torch.where(factor != 0, gradient.to(_sum_dtype(gradient)) * factor, 0)
        # An optimizer of sparse gradients would move rows whose gradients are 0.
        return gradient.coalesce() * factor if factor != 0 else torch.zeros_like(gradient)

    return [None if gradient is None else multiply(gradient) for gradient in gradients]


def _sum_dtype(gradient: Tensor) -> torch.dtype:
    """Return the dtype in which dense weighted gradients are added: halves would overflow."""
    return torch.float32 if gradient.dtype.itemsize < 4 else gradient.dtype


def _to_device(divisor: int | Tensor, parameter: Tensor) -> int | Tensor:
    return divisor if isinstance(divisor, int) else divisor.to(parameter.device)


def _cached_on(make: Callable[[torch.device], Tensor]) -> Callable[[torch.device], Tensor]:
    """Return a function that makes a tensor once for each device."""
    tensors: dict[torch.device, Tensor] = {}

    def on(device: torch.device) -> Tensor:
        if device not in tensors:
            tensors[device] = make(device)
        return tensors[device]

    return on
