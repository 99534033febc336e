"""Updates torch models: backward, merge, clip, and step or defer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.overrides import has_torch_function

from fastnet.backend.model_metadata import every_optimizer_of, get_metadata, holder_of, name_of
from fastnet.backend.model_update import Followers, ModelUpdate
from fastnet.backend.torch._internals import (
    OVERWRITTEN,
    is_torchs,
    run_backward,
    transforms_are_active,
)
from fastnet.backend.torch.clipping import clip_gradients
from fastnet.backend.torch.graph import reached
from fastnet.backend.torch.wrappers import engine_of
from fastnet.errors import add_note, describe_op
from fastnet.types import State
from fastnet.util.formatting import format_ds_ids
from fastnet.util.warnings import warn

__all__ = [
    "TRAINED",
    "Merged",
    "OptimizerStep",
    "TorchUpdate",
    "accumulate_gradients",
    "backward",
    "call_engine",
    "clear_gradients",
    "cleared_gradients",
    "engine_suffices",
    "is_bare_zero_grad",
    "own",
    "parameters_in",
    "parameters_of",
    "parameters_of_others",
    "trainable",
    "trainable_in",
]

TRAINED = "trained_models"
"""The key of the step's context that lists the jointly trained models, if there are several."""


class Merged(NamedTuple):
    """The number of merged steps, and the sums of their gradients. It is replaced, not changed."""

    times: int
    sums: Mapping[torch.nn.Parameter, torch.Tensor]


class TorchUpdate(ModelUpdate):
    """Updates a torch model; `fastnet.backend.model_update` describes the sequence.

    Raises:
        ValueError: If `merge_grad` is more than 1 in DataParallel on several GPUs.
    """

    trained = "parameters"

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        if op.merge_grad > 1 and engine_of(op.model) == "dp" and torch.cuda.device_count() > 1:
            raise ValueError(
                f"UpdateOp of '{name_of(op.model)}' has merge_grad={op.merge_grad}, which is not "
                "supported on several devices. Use merge_grad=1."
            )
        self._named = holder_of(op.model, "model_name")
        clips = any(self._clipping)
        self._clip = partial(clip_gradients, *self._clipping) if clips else None
        self._merged = Merged(0, {})
        # What the running step has merged. It becomes `_merged` when the step cannot fail any more.
        self._uncommitted: Merged | None = None
        self._opened: State | None = None
        self._others: list[torch.nn.Module] = []

    def __call__(
        self, data: Any, state: State, defer: bool, retain_graph: bool, followers: Followers = ()
    ) -> list[Any] | None:
        """Run the sequence: backward, merge, clip, and step or defer.

        Raises:
            ValueError: If the model has no optimizer in this epoch, or nothing to train.
            RuntimeError: If the gradients cannot be computed.
        """
        reports = values = None
        if self._reports:
            reports = self._new_reports()
            values = list(reports.values())
        if state["warmup"]:
            return values
        optimizer = getattr(self._holder, "current_optimizer", None) or self.optimizer()
        self._check_trainable(optimizer)
        self._others = [one for one in state.get(TRAINED, ()) if one is not self._model]
        deferred = state["deferred"]
        merged = None
        try:
            if self.is_merging:
                merged = self._merge_gradients(data, optimizer, retain_graph, state)
                if merged.times:
                    self._uncommitted = merged
                    deferred[_key_of(self)] = [_Commit(self, merged, deferred)]
                    return values
            elif self._given:
                parameters = trainable(self._model)
                accumulate_gradients(parameters, self.checked(data, parameters))
            else:
                self.add_gradients(data, optimizer, retain_graph)
            if state is not self._opened:
                held = [one.grad for one in parameters_of(self._model, optimizer)]
                self._check_reached(data, optimizer, held, state)
        except BaseException as error:
            self.clear_gradients()
            self._explain(error, data)
            raise
        name = self._named.model_name
        step = OptimizerStep(optimizer, name, self._clip, reports, followers)
        if defer:
            if merged is not None:
                self._uncommitted = merged
                deferred[_key_of(self)] = [_Commit(self, merged)]
            # The first update of a model decides when its optimizer takes its step: where models
            # share parameters, the first step uses their gradients.
            deferred[name] = [step]
            return values
        if merged is not None:
            self.commit(merged)
        step()
        if deferred:
            # This step has used the gradients that an earlier update deferred.
            deferred.pop(name, None)
        return values

    def flush(self, followers: Followers) -> None:
        """Update with the average of the gradients merged since the last update, if any."""
        merged = self._merged
        if not merged.times:
            return
        optimizer = self.optimizer()
        self._merged = Merged(0, {})
        try:
            self._apply_merged(optimizer, merged)
        except BaseException:
            self.clear_gradients()
            raise
        OptimizerStep(optimizer, self._named.model_name, self._clip, None, followers)()

    def add_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate the gradients of the loss in `.grad`, apart from those of other models."""
        loss = self.scaled_loss(data, optimizer)
        if self._others:
            _isolated_backward(loss, retain_graph, self._model, optimizer, self._others)
        else:
            backward(loss, None, retain_graph)

    def scaled_loss(self, loss: Any, optimizer: Any) -> torch.Tensor:
        """Return the mean of the loss, scaled in mixed precision."""
        if not isinstance(loss, torch.Tensor):
            raise self.not_a_loss(loss)
        if loss.dim():
            loss = loss.mean()
        scaler = getattr(optimizer, "scaler", None)
        scaled: torch.Tensor = loss if scaler is None else scaler.scale(loss)
        return scaled

    def checked(self, gradients: Any, parameters: Sequence[torch.nn.Parameter]) -> Sequence[Any]:
        """Return the given gradients; raise a ValueError if there is not one per parameter."""
        self.check_gradients(gradients, len(parameters))
        checked: Sequence[Any] = gradients
        return checked

    def _merge_gradients(
        self, data: Any, optimizer: Any, retain_graph: bool, state: State
    ) -> Merged:
        """Add gradients to the sums; once there are enough, put their average into `.grad`."""
        if self._given:
            parameters = trainable(self._model)
            gradients = self.checked(data, parameters)
        else:
            parameters = self.trained_now()
            gradients = self.separate_gradients(data, optimizer, parameters, retain_graph)
        if state is not self._opened:
            self._check_reached(data, optimizer, gradients, state)
        before = self._uncommitted or self._merged
        sums = dict(before.sums)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                gradient = gradient.detach()
                total = sums.get(parameter)
                sums[parameter] = gradient.clone() if total is None else total + gradient
        merged = Merged(before.times + 1, sums)
        if merged.times < self.merges:
            return merged
        self._apply_merged(optimizer, merged)
        return Merged(0, {})

    def separate_gradients(
        self,
        data: Any,
        optimizer: Any,
        parameters: Sequence[torch.nn.Parameter],
        retain_graph: bool,
    ) -> list[torch.Tensor | None]:
        """Compute gradients apart from those in `.grad`, which a deferred step may need."""
        with cleared_gradients(parameters):
            self.add_gradients(data, optimizer, retain_graph)
            return [parameter.grad for parameter in parameters]

    def _apply_merged(self, optimizer: Any, merged: Merged) -> None:
        everything = parameters_of(self._model, optimizer)
        counted = [parameter for parameter in everything if parameter in merged.sums]
        lost = len(merged.sums) - len(counted)
        if lost:
            warn(
                f"UpdateOp of '{name_of(self._model)}' has merged gradients of {lost} parameters "
                "that neither the model nor its optimizer has any more: these are lost. Replace "
                "parameters right after an update.",
            )
        # There are more steps than `merge_grad` if it was lowered meanwhile.
        self.apply_averages(counted, merged.sums, merged.times)

    def apply_averages(
        self,
        counted: Sequence[torch.nn.Parameter],
        sums: Mapping[torch.nn.Parameter, torch.Tensor],
        times: int,
    ) -> None:
        """Accumulate the averages of merged gradients in `.grad`."""
        # A parameter may have changed its dtype since its gradients were merged.
        accumulate_gradients(counted, [(sums[one] / times).to(one) for one in counted])

    def _new_reports(self) -> dict[str, torch.Tensor]:
        """Make the tensors to report; a step that is taken later fills them in then."""
        device = next((one.device for one in self._model.parameters()), None)
        made = {
            "grad_norm": torch.full((), float("nan"), device=device),
            "stepped": torch.zeros((), dtype=torch.bool, device=device),
        }
        return {report: made[report] for report in self._reports}

    @property
    def standing(self) -> Merged:
        """The gradients merged since the last update; `commit` replaces them."""
        return self._merged

    def commit(self, merged: Merged | None) -> None:
        """Keep what the step has merged, or with None discard it."""
        self._uncommitted = None
        if merged is not None:
            self._merged = merged

    def clear_gradients(self) -> None:
        """Clear the gradients of the model and its optimizer, and what the step has merged."""
        self._uncommitted = None
        optimizer = getattr(self._holder, "current_optimizer", None)
        for parameter in parameters_of(self._model, optimizer):
            parameter.grad = None
        if optimizer is not None:
            # Its `zero_grad` may clear more than gradients.
            clear_gradients(optimizer)

    def merged(self) -> tuple[int, list[Any]]:
        """Return the number of merged steps, and copies of the sums in the order of parameters."""
        sums = [self._merged.sums.get(parameter) for parameter in self.trained_now()]
        return self._merged.times, [None if one is None else one.clone() for one in sums]

    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        """Continue from what `merged` returned."""
        sums = {
            parameter: torch.as_tensor(gradient).to(parameter.device, parameter.dtype, copy=True)
            for parameter, gradient in zip(self.trained_now(), gradients, strict=True)
            if gradient is not None
        }
        self._merged = Merged(times, sums)

    def fits(self, trained: Any, gradient: Any) -> bool:
        """Return whether a gradient can be added to those of a parameter."""
        try:
            given = torch.as_tensor(gradient)
        except Exception:
            return False
        if given.is_quantized or given.is_meta or given.shape != trained.shape:
            return False
        return bool(torch.can_cast(given.dtype, trained.dtype))

    def trained_now(self) -> list[torch.nn.Parameter]:
        """List the trainable parameters of the model, then others that its optimizer updates."""
        optimizer = getattr(self._holder, "current_optimizer", None)
        return [one for one in parameters_of(self._model, optimizer) if one.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        # Copies of an optimizer lose the attributes that torch does not know of.
        scalers = [(one, getattr(one, "scaler", None)) for one in every_optimizer_of(self._model)]
        return {**vars(self), "_opened": None, "_others": [], "scalers": scalers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for optimizer, scaler in state.pop("scalers"):
            optimizer.scaler = scaler
        vars(self).update(state)

    def _check_trainable(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    return
        if not any(parameter.requires_grad for parameter in self._model.parameters()):
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its parameters "
                "has requires_grad. Unfreeze some of them, or take the UpdateOp out."
            )

    def _check_reached(
        self, data: Any, optimizer: Any, gradients: Sequence[Any], state: State
    ) -> None:
        """Warn in the first step of a context if the loss does not depend on the model."""
        self._opened = state
        if self._given or any(gradient is not None for gradient in gradients):
            return
        # A hook may have removed the gradients, so ask the graph.
        leaves, hidden = reached(data)
        own = set(map(id, parameters_of(self._model, optimizer)))
        if hidden or any(id(leaf) in own for leaf in leaves):
            return
        name, ds_ids = name_of(self._model), getattr(self._op, "ds_id", None)
        limit = f", which {format_ds_ids(ds_ids)}" if ds_ids else ""
        warn(
            f"{describe_op(self._op)} of model '{name}'{limit}: the loss '{self._op.loss_name}' "
            "has no gradients for any parameter of the model, as its graph does not reach it. Make "
            f"the loss from the output of a ModelOp of '{name}', in the same step."
        )

    def _explain(self, error: BaseException, data: Any) -> None:
        if not isinstance(error, RuntimeError):
            return
        if isinstance(data, torch.Tensor) and not data.requires_grad:
            raise RuntimeError(
                f"The loss '{self._op.loss_name}' has no graph to take the gradients of "
                f"'{name_of(self._model)}' from: nothing that it was made of needs gradients. "
                "Make it from the output of a ModelOp with gradients=True, outside of no_grad."
            ) from error
        if str(error).startswith(OVERWRITTEN) and self._may_be_parameter(str(error)):
            raise RuntimeError(
                f"The gradients of '{name_of(self._model)}' need variables that an earlier "
                "update in this step has overwritten. Pass defer=True to the UpdateOps of models "
                "that work together with this one."
            ) from error

    def _may_be_parameter(self, text: str) -> bool:
        """Return whether autograd's error is about a tensor with the shape of a parameter."""
        found = re.search(r"\[torch\.\w+ \[([\d, ]*)\]\]", text)
        shape = found and sorted(int(size) for size in re.findall(r"\d+", found[1]))
        models = (self._model, *self._others)
        # A linear layer reads its weight transposed.
        return shape is None or any(
            sorted(one.shape) == shape for model in models for one in model.parameters()
        )


class OptimizerStep:
    """An optimizer's step: clip the gradients, step, clear them, report, and call the followers."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        clip: Callable[[list[torch.nn.Parameter]], torch.Tensor | None] | None = None,
        reports: Mapping[str, torch.Tensor] | None = None,
        followers: Followers = (),
    ) -> None:
        self._optimizer = optimizer
        self._name = name
        self._clip = clip
        self._reports = reports
        self._followers = followers

    def __call__(self) -> None:
        """Take the step; an error names the model."""
        optimizer, clip = self._optimizer, self._clip
        scaler = getattr(optimizer, "scaler", None)
        norm: torch.Tensor | None = None
        stepped: Any = True
        try:
            if scaler is None:
                if clip is not None:
                    norm = clip(parameters_in(optimizer))
                optimizer.step()
            elif clip is None and self._reports is None and not self._followers:
                scaler.step(optimizer)
                scaler.update()
            else:
                scaler.unscale_(optimizer)
                if clip is not None:
                    norm = clip(parameters_in(optimizer))
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                # The scaler skips a step that overflows, and lowers the scale. At a scale of 0 all
                # gradients overflow, and it cannot be lowered.
                stepped = (before > 0) & (before <= scaler.get_scale())
        except Exception as error:
            add_note(error, f"Raised by the update of model '{self._name}'.")
            raise
        finally:
            clear_gradients(optimizer)
        if self._followers and stepped:
            for follow in self._followers:
                follow()
        reports = self._reports
        if reports is not None:
            if norm is not None and "grad_norm" in reports:
                reports["grad_norm"].copy_(norm)
            if "stepped" in reports:
                reports["stepped"].fill_(stepped)

    def discard(self) -> None:
        """Clear the gradients, because the network's step failed."""
        clear_gradients(self._optimizer)


class _Commit:
    """Commits what a step has merged; given the deferred functions, after all of these."""

    def __init__(
        self, update: TorchUpdate, merged: Merged, deferred: dict[str, list[Any]] | None = None
    ) -> None:
        self._update = update
        self._merged = merged
        self._deferred = deferred

    def __call__(self) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            self._update.commit(self._merged)
        else:
            deferred[_key_of(self._update)] = [self]

    def discard(self) -> None:
        self._update.commit(None)


def _key_of(update: TorchUpdate) -> str:
    return f"merge_grad of {id(update)}"


def own(function: Any) -> Any:
    """Return a function of torch; if it was replaced, an object that nothing else is."""
    return function if is_torchs(function) else object()


_tensor_backward = own(torch.Tensor.backward)
_backward = own(torch.autograd.backward)
_zero_grad = own(torch.optim.Optimizer.zero_grad)


def engine_suffices(target: torch.Tensor, *sources: torch.Tensor) -> bool:
    """Return whether a call of autograd's engine equals torch's own functions around it.

    It does not under a mode of torch functions or a transform of `torch.func`, nor for complex
    numbers.
    """
    return (
        run_backward is not None
        and not has_torch_function((target, *sources))
        and target.is_floating_point()
        and not transforms_are_active()
    )


def call_engine(
    target: torch.Tensor,
    inputs: tuple[torch.Tensor, ...],
    retain_graph: bool,
    create_graph: bool,
    accumulate: bool,
) -> Any:
    """Differentiate the sum of a tensor's elements; `engine_suffices` must be true."""
    return run_backward(  # type: ignore[misc]
        (target,),
        (torch.ones_like(target),),
        retain_graph,
        create_graph,
        inputs,
        allow_unreachable=True,
        accumulate_grad=accumulate,
    )


def _is_direct(loss: torch.Tensor) -> bool:
    """Return whether autograd's engine alone does what the loss's own `backward` does."""
    return (
        engine_suffices(loss)
        and getattr(loss.backward, "__func__", None) is _tensor_backward
        and torch.autograd.backward is _backward
    )


def backward(
    loss: torch.Tensor, parameters: Sequence[torch.Tensor] | None, retain_graph: bool
) -> None:
    """Accumulate the gradients of a scalar loss in the given leaves; None for all leaves."""
    if parameters is not None and not parameters:
        return  # An empty list would mean all of them.
    if _is_direct(loss):
        call_engine(loss, tuple(parameters or ()), retain_graph, False, accumulate=True)
        return
    # A replaced `backward` may take no arguments.
    settings: dict[str, Any] = {"retain_graph": True} if retain_graph else {}
    if parameters is not None:
        settings["inputs"] = list(parameters)
    loss.backward(**settings)  # type: ignore[no-untyped-call]


def _isolated_backward(
    loss: torch.Tensor,
    retain_graph: bool,
    model: torch.nn.Module,
    optimizer: Any,
    others: Iterable[torch.nn.Module],
) -> None:
    """Accumulate a loss's gradients in all leaves except the parameters of other models.

    A parameter of the model or of its optimizer is never another model's, whoever shares it.
    """
    leaves, hidden = reached(loss)
    own = set(map(id, parameters_in(optimizer)))
    if not hidden and all(id(leaf) in own for leaf in leaves):
        backward(loss, None, retain_graph)
        return
    own.update(map(id, model.parameters()))
    foreign = parameters_of_others(others, own)
    foreign_ids = set(map(id, foreign))
    # Autograd functions written in Python and custom `backward` methods need the whole graph.
    needs_whole_graph = hidden or not _is_direct(loss)
    inputs = None if needs_whole_graph else [leaf for leaf in leaves if id(leaf) not in foreign_ids]
    # A leaf that is left may pass its gradient on to a foreign parameter.
    with cleared_gradients(foreign):
        backward(loss, inputs, retain_graph)


@contextmanager
def cleared_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Clear the gradients of parameters, and restore them on exit."""
    # Models may share a parameter. Its gradient is saved once, before it is cleared.
    saved = {parameter: parameter.grad for parameter in parameters}
    try:
        for parameter in saved:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in saved.items():
            parameter.grad = gradient


def accumulate_gradients(
    parameters: Iterable[torch.nn.Parameter], gradients: Iterable[torch.Tensor | None]
) -> None:
    """Add gradients to those in `.grad`; they are neither changed nor kept."""
    for parameter, gradient in zip(parameters, gradients, strict=False):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient.detach().clone()
        else:
            parameter.grad += gradient


def clear_gradients(optimizer: Any) -> None:
    """Clear the gradients of everything that an optimizer updates."""
    zero_grad = optimizer.zero_grad
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


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """List the trainable parameters of a model, in order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameters_in(optimizer: Any) -> list[torch.nn.Parameter]:
    """List the parameters that an optimizer updates; None has none."""
    groups = getattr(optimizer, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def trainable_in(value: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the trainable parameters of a module or an optimizer, or a parameter, with names."""
    if isinstance(value, torch.nn.Parameter):
        found: Iterable[tuple[str, torch.nn.Parameter]] = [("", value)]
    elif isinstance(value, torch.nn.Module):
        found = value.named_parameters()
    elif "param_groups" in getattr(value, "__dict__", {}):
        found = [("", one) for one in parameters_in(value)]
    else:
        found = ()
    yield from ((name, one) for name, one in found if one.requires_grad)


def parameters_of(model: torch.nn.Module, optimizer: Any) -> list[torch.nn.Parameter]:
    """List the parameters of a model, then others that its optimizer updates, each once."""
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    parameters.update((id(parameter), parameter) for parameter in parameters_in(optimizer))
    return list(parameters.values())


def parameters_of_others(
    others: Iterable[torch.nn.Module], own: Collection[int]
) -> list[torch.nn.Parameter]:
    """List the parameters of other models and their optimizers, except those whose id is own."""
    return [
        parameter
        for other in others
        for parameter in parameters_of(other, get_metadata(other, "current_optimizer"))
        if id(parameter) not in own
    ]
