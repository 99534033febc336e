"""Steps of torch's optimizers: clip the gradients, step, and clear them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch.backward import unpatched
from fastnet.backend.torch.disable_autocast import without_autocast
from fastnet.backend.torch.parameters import (
    in_order_of_model,
    model_and_optimizer_parameters,
    optimizer_parameters,
)
from fastnet.backend.torch.wrappers import is_sharded, parallel_type, reset_fsdp
from fastnet.backend.update import PLAIN_STEP, Followers, OptimizerStepSettings
from fastnet.errors import add_note

STEP_IF = "_step_if"
"""The name of the function that a trace sets on an optimizer: it steps where a boolean scalar is
true, which a trace cannot read."""

_zero_grad = unpatched(torch.optim.Optimizer.zero_grad)


@dataclass(frozen=True, eq=False)
class PendingStep:
    """The step that a model's updates take together: clips the gradients, steps and reports.

    It does so when it is called: at once, or deferred.

    Attributes:
        optimizer: The optimizer, which may have a GradScaler.
        model: The model.
        model_name: Its name.
        settings: How gradients are clipped, and whether the norm is needed. None for those of the
            step that it joins, or for gradients that are taken as they are.
        condition: A scalar, whether there is anything to step with; None if there always is.
        followers: Functions that are called after the step, if it was taken.
        reports: The tensors to fill in, by name.
        on_end: Functions that are called after the step, whether it was taken or skipped.
    """

    optimizer: Any
    model: Module
    model_name: str
    settings: OptimizerStepSettings | None = None
    condition: Tensor | None = None
    followers: Followers = ()
    reports: Mapping[str, Tensor] | None = None
    on_end: Sequence[Callable[[], None]] = ()

    def __call__(self) -> None:
        """Take the step and clear its gradients, call the followers, and report."""
        norm, stepped = self._step_optimizer()
        for function in self.on_end:
            function()
        if self.followers and stepped:
            for follow in self.followers:
                follow()
        if self.reports:
            if norm is not None and "grad_norm" in self.reports:
                self.reports["grad_norm"].copy_(norm)
            if "stepped" in self.reports:
                self.reports["stepped"].fill_(stepped)

    def joined_with(self, earlier: object) -> PendingStep:
        """Return one step for the gradients of this one and of an earlier one of the optimizer.

        It is taken if either has gradients. The later settings and reports replace earlier ones.

        Args:
            earlier: A `PendingStep`, or a function of FastEstimator that takes a step.
        """
        if not isinstance(earlier, PendingStep):
            return replace(self, condition=None)
        condition = None
        if self.condition is not None and earlier.condition is not None:
            condition = self.condition | earlier.condition.to(self.condition.device)
        return replace(
            self,
            settings=earlier.settings if self.settings is None else self.settings,
            condition=condition,
            # Both may have the same followers.
            followers=tuple(dict.fromkeys((*earlier.followers, *self.followers))),
            reports=earlier.reports if self.reports is None else self.reports,
            on_end=(*earlier.on_end, *self.on_end),
        )

    def take_or_defer(self, defer: bool, deferred: dict[str, list[Any]]) -> None:
        """Take the step now or after the last op, as one with the model's deferred step, if any.

        Args:
            defer: Whether to defer it.
            deferred: The lists of deferred functions, by the names of models.
        """
        functions = deferred.get(self.model_name, []) if deferred else []
        index = _index_of_step(functions)
        step = self if index is None else self.joined_with(functions[index])
        if not defer:
            step()
            if index is not None:
                del functions[index]
                if not functions:
                    del deferred[self.model_name]
        elif index is None:
            deferred.setdefault(self.model_name, []).append(step)
        else:
            # The first update of a model decides when its optimizer takes its step: where models
            # share parameters, the first step uses their gradients.
            functions[index] = step

    @without_autocast
    def _step_optimizer(self) -> tuple[Tensor | None, bool | Tensor]:
        """Clip the gradients, let the optimizer step, and clear them.

        Returns:
            The norm of all gradients before they were clipped, if it is needed, NaN if the
            optimizer has not stepped; and whether it has, True if a scaler decides and nobody asks.
        """
        optimizer, condition = self.optimizer, self.condition
        settings = self.settings or PLAIN_STEP
        scaler = getattr(optimizer, "scaler", None)
        norm: Tensor | None = None
        stepped: bool | Tensor
        try:
            if settings.reads_gradients:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                parameters = optimizer_parameters(optimizer)
                _coalesce_gradients(parameters)
                is_finite = None
                if settings.skip_nonfinite and scaler is None:
                    # Clipping values hides infinite ones.
                    is_finite = _all_finite(parameters)
                if len(optimizer.param_groups) > 1:
                    parameters = in_order_of_model(parameters, self.model)
                norm = _clip_gradients(settings, parameters)
                condition = _logical_and(condition, is_finite)
            if condition is not None and scaler is None and hasattr(optimizer, STEP_IF):
                # In a trace, which cannot read the condition.
                getattr(optimizer, STEP_IF)(condition)
                stepped = condition
            elif condition is not None and not condition:  # Reading it waits for the device.
                if scaler is not None:
                    _reset_scaler(scaler, optimizer)
                stepped = False
            elif scaler is None:
                optimizer.step()
                stepped = True
            else:
                reports_step = settings.needs_norm or "stepped" in (self.reports or ())
                stepped = _step_scaled(optimizer, scaler, bool(self.followers) or reports_step)
        except BaseException as error:
            if isinstance(error, Exception):
                add_note(error, f"Raised by the update of model '{self.model_name}'.")
            if scaler is not None:
                with suppress(Exception):  # It must not hide the error.
                    _reset_scaler(scaler, optimizer)
            raise
        finally:
            clear_gradients(optimizer)
        if not settings.needs_norm:
            return None, stepped
        if norm is not None and isinstance(stepped, Tensor):
            norm = torch.where(stepped.to(norm.device), norm, torch.nan)
        elif norm is not None and not stepped:
            norm = torch.full_like(norm, torch.nan)
        return norm, stepped


def add_reports_to_deferred_step(
    deferred: Mapping[str, list[Any]],
    model_name: str,
    reports: Mapping[str, Tensor],
    needs_norm: bool,
) -> None:
    """Let the deferred step of a model fill in reports, if there is one that fastnet takes."""
    functions = deferred.get(model_name, [])
    index = _index_of_step(functions)
    if index is None or not isinstance(step := functions[index], PendingStep):
        return
    settings = step.settings or PLAIN_STEP
    settings = settings._replace(needs_norm=needs_norm or settings.needs_norm)
    functions[index] = replace(step, settings=settings, reports=reports)


def _index_of_step(functions: Sequence[object]) -> int | None:
    """Return the index of the step among the deferred functions of a model, or None.

    Functions that ops of the user have added are not steps.
    """
    return next((index for index, function in enumerate(functions) if _is_step(function)), None)


def _is_step(function: object) -> bool:
    """Return whether a deferred function is a step, of fastnet or of FastEstimator."""
    module = str(getattr(function, "__module__", ""))
    return isinstance(function, PendingStep) or module.startswith("fastestimator.")


def _step_scaled(optimizer: Any, scaler: Any, needs_stepped: bool) -> bool:
    """Step by a GradScaler; return whether it has, if that is needed."""
    # Reading the scale waits for the device.
    before = scaler.get_scale() if needs_stepped else None
    scaler.step(optimizer)
    scaler.update()
    if before is None:
        return True
    # The scaler skips a step that overflows, and lowers the scale. At a scale of 0 all gradients
    # overflow, and it cannot be lowered.
    has_stepped: bool = (before > 0) and (before <= scaler.get_scale())
    return has_stepped


def _reset_scaler(scaler: Any, optimizer: Any) -> None:
    """Let a GradScaler unscale gradients again after a skipped step; its scale stays the same."""
    # A scaler has no scale to update before it has scaled anything.
    scaler.scale(torch.zeros((), device=optimizer_parameters(optimizer)[0].device))
    scaler.update(scaler.get_scale())


def _logical_and(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first.to(second.device) & second


def _coalesce_gradients(parameters: Iterable[Parameter]) -> None:
    """Add the values of sparse gradients that have the same index."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout is torch.sparse_coo:
            parameter.grad = parameter.grad.coalesce()


def _all_finite(parameters: Iterable[Parameter]) -> Tensor:
    """Return whether all elements of gradients are finite, a boolean scalar."""
    checks = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if is_sharded(gradient):
            # 0 times a finite element is 0, and 0 times any other element is NaN, so the sum over
            # all shards is finite if all elements are. A norm may overflow even then.
            total: Any = (gradient * 0).sum()
            checks.append(torch.isfinite(total.full_tensor()))
        else:
            checks.append(torch.isfinite(_dense_view(gradient)).all())
    if not checks:
        return torch.ones((), dtype=torch.bool)
    return torch.stack([check.to(checks[0].device) for check in checks]).all()


def _clip_gradients(settings: OptimizerStepSettings, parameters: list[Parameter]) -> Tensor | None:
    """Clip as `clip_grad_norm_` and `clip_grad_value_`; return the norm before that, if needed.

    Sparse and sharded gradients are clipped, too, which these functions do not support.
    """
    max_norm, max_value = settings.clip_norm, settings.clip_value
    if max_norm is None and max_value is None and not settings.needs_norm:
        return None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    is_plain = all(
        gradient.layout is torch.strided and not is_sharded(gradient) for gradient in gradients
    )
    norm: Tensor | None = None
    with torch.no_grad():
        if max_norm is not None and gradients and is_plain:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        elif max_norm is not None or settings.needs_norm:
            norm = _total_norm(gradients)
            if max_norm is not None:
                factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
                for gradient in gradients:
                    _dense_view(gradient).mul_(factor.to(gradient.device))
        if max_value is not None and is_plain:
            torch.nn.utils.clip_grad_value_(parameters, max_value)
        elif max_value is not None:
            for gradient in gradients:
                _dense_view(gradient).clamp_(-max_value, max_value)
    return norm


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients as one vector; 0 if there are none."""
    norms = []
    for gradient in gradients:
        sharded = is_sharded(gradient)
        norm: Any = torch.linalg.vector_norm(gradient if sharded else _dense_view(gradient))
        norms.append((norm.full_tensor() if sharded else norm).to(gradients[0].device))
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _dense_view(gradient: Any) -> Tensor:
    """Return a dense tensor that shares the memory of a gradient's values on this process."""
    values: Tensor = gradient
    if gradient.layout is torch.sparse_coo:
        values = gradient.values()
    elif is_sharded(gradient):
        values = gradient.to_local()
    return values


def clear_model_gradients(model: Module) -> None:
    """Clear the gradients of a model that has an optimizer, and of all that this updates."""
    optimizer = get_metadata(model, "current_optimizer")
    if optimizer is None:
        return
    for parameter in model_and_optimizer_parameters(model, optimizer):
        parameter.grad = None
    # Its `zero_grad` may clear more than gradients.
    clear_gradients(optimizer)
    if parallel_type(model) == "fsdp":
        reset_fsdp(model)


def clear_gradients(optimizer: Any) -> None:
    """Clear the gradients of everything that an optimizer updates."""
    zero_grad: Callable[[], None] = optimizer.zero_grad
    if not is_bare_zero_grad(zero_grad):
        zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def is_bare_zero_grad(zero_grad: Any) -> bool:
    """Return whether an optimizer's `zero_grad` is torch's own, which only clears gradients.

    Clearing them directly saves 4 to 6 % of a small training step.
    """
    return getattr(zero_grad, "__func__", None) is _zero_grad
