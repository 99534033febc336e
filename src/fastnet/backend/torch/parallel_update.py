"""Runs and updates torch models that are wrapped in DistributedDataParallel or sharded by FSDP2.

FSDP2 averages gradients in every backward pass. DistributedDataParallel does so only in a single
backward pass after a forward pass through the wrapper. Where a step has nothing else, the wrapper
runs; otherwise the model inside it runs, and the update averages the gradients that it needs.
Networks that compile steps always take the second way, also for steps that are not compiled: all
ranks then communicate alike, although one may run a step eagerly and another may run it compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.torch._internals import (
    has_communication_hooks,
    is_joining,
    parameter_count_of,
)
from fastnet.backend.torch.all_reduce import average_gradients, broadcast_buffers
from fastnet.backend.torch.backward import backward
from fastnet.backend.torch.collectives import are_traced
from fastnet.backend.torch.gradients import compute_gradients
from fastnet.backend.torch.models import TorchPass
from fastnet.backend.torch.parameters import (
    accumulate_gradients,
    gradients_set_aside,
    graph_leaves,
    in_order_of_model,
    model_and_optimizer_parameters,
    optimizer_parameters,
    parameters_of_others,
    trainable_parameters,
)
from fastnet.backend.torch.update import TRAINED, TorchUpdate
from fastnet.backend.torch.wrappers import (
    fsdp_no_sync,
    groups_of,
    is_sharded,
    parallel_type,
    reduces_in_own_dtype,
    reshard,
    without_compile,
)
from fastnet.backend.update import Followers
from fastnet.types import State

REDUCED_BY_DDP = "reduced_by_ddp"
"""The key of the session's state with the model whose gradients its wrapper averages, if any."""

AVERAGED_BY_UPDATES = "averaged_by_updates"
"""The key of the session's state that tells whether updates average all gradients themselves.

In `Join`, and with a communication hook, the wrapper still does."""

# The parameters whose gradients each wrapper averages.
_reduced: weakref.WeakKeyDictionary[Module, list[Parameter]] = weakref.WeakKeyDictionary()


def make_pass(op: Any, split: Callable[[Any], Iterable[Any]]) -> TorchPass:
    """Return the pass of a ModelOp."""
    cls = DDPPass if parallel_type(op.model) == "ddp" else TorchPass
    return cls(op, split)


def make_update(op: Any, reports: Sequence[str]) -> TorchUpdate:
    """Return the update of an UpdateOp."""
    cls = ParallelUpdate if parallel_type(op.model) in ("ddp", "fsdp") else TorchUpdate
    return cls(op, reports)


def note_parameters(model: Module) -> None:
    """Note the parameters whose gradients a DistributedDataParallel averages, when it is built."""
    wrapper = without_compile(model)
    if isinstance(wrapper, DistributedDataParallel) and wrapper not in _reduced:
        parameters = trainable_parameters(wrapper)
        # If the counts differ, some were frozen or unfrozen since the wrapper was made, and nothing
        # tells which.
        is_known = parameter_count_of(wrapper) == len(parameters)
        _reduced[wrapper] = parameters if is_known else []


def _averages_in_hooks(wrapper: Module) -> bool:
    """Return whether only the wrapper itself can average gradients now."""
    return is_joining(wrapper) or has_communication_hooks(wrapper)


def _wrappers_of(parameters: set[int]) -> list[DistributedDataParallel]:
    """List the wrappers that have some of the parameters with these ids."""
    return [
        cast("DistributedDataParallel", wrapper)
        for wrapper in list(_reduced)
        if not parameters.isdisjoint(map(id, wrapper.parameters()))
    ]


def shares_parameters_with_others(wrapper: Module, wrappers: Collection[Module]) -> bool:
    """Return whether a wrapper that is not in `wrappers` shares parameters, and has buffers."""
    return any(
        other not in wrappers and any(True for _ in other.buffers())
        for other in _wrappers_of(set(map(id, wrapper.parameters())))
    )


def _is_reduced_by_ddp(model: Module, wrapper: Module, state: State) -> bool:
    """Return whether the wrapper averages the gradients of the running step."""
    reduced = _reduced.get(wrapper)
    return (
        state.get(REDUCED_BY_DDP) is model
        and (not state[AVERAGED_BY_UPDATES] or _averages_in_hooks(wrapper))
        and bool(reduced)
        # False inside `no_sync`.
        and bool(wrapper.require_backward_grad_sync)
        # The wrapper would wait for the gradient of a parameter that was frozen.
        and all(parameter.requires_grad for parameter in reduced or ())
    )


class DDPPass(TorchPass):
    """Runs a model in DistributedDataParallel, which communicates in training only."""

    def __init__(self, op: Any, split: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(op, split)
        self._wrapper = without_compile(op.model)

    def _run(self, data: Any) -> Any:
        state = self._session_state
        assert state is not None
        model = cast("Callable[..., Any]", self._wrapper.module)
        # The key is there in training with other processes, but not in a warmup.
        if self._gradients and REDUCED_BY_DDP in state:
            if _is_reduced_by_ddp(self._model, self._wrapper, state):
                if are_traced():
                    raise RuntimeError(
                        "the model is in the context of Join, or has a communication hook"
                    )
                model = self._model
            else:
                broadcast_buffers(cast("DistributedDataParallel", self._wrapper))
        if self._by_name is not None:
            model = self._by_name.of(model)
        with nullcontext() if self._gradients else torch.no_grad():
            return model(*data) if self._unpacks_arguments else model(data)


class ParallelUpdate(TorchUpdate):
    """Updates a model by gradients that are averaged over processes when they are complete."""

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        self._is_sharded = parallel_type(op.model) == "fsdp"
        self._wrapper = without_compile(op.model)
        self._groups = groups_of(op.model)
        # A sharded model has other parameters between its forward and backward passes.
        self._parameters = list(op.model.parameters()) if self._is_sharded else []
        # The ids of the parameters whose gradients DDP or FSDP2 averages, if it does.
        self._averaged_by_wrapper: set[int] = set()
        self._isolates_shards = False
        self._wrappers: list[DistributedDataParallel] = []

    def on_session(self, state: State) -> None:
        """Find the parameters whose gradients DDP or FSDP2 averages."""
        super().on_session(state)
        reduced = _reduced.get(self._wrapper) or filter(is_sharded, self._parameters)
        self._averaged_by_wrapper = set(map(id, reduced))
        optimizer = get_metadata(self._model, "current_optimizer")
        updated = set(map(id, model_and_optimizer_parameters(self._model, optimizer)))
        # An optimizer may update several models.
        self._wrappers = _wrappers_of(updated)
        models = [self._model, *state.get(TRAINED, ())]
        self._isolates_shards = any(parallel_type(model) == "fsdp" for model in models)

    def _run(
        self,
        data: Any,
        weight: Any,
        state: State,
        defer: bool,
        retain_graph: bool,
        followers: Followers,
    ) -> list[Any] | None:
        if self._gradients_are_given and self._is_sharded:
            reshard(self._model)
        return super()._run(data, weight, state, defer, retain_graph, followers)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_wrappers": []}

    def _flush(self, followers: Followers, state: State, defer: bool) -> None:
        reshard(self._model)
        super()._flush(followers, state, defer)

    def add_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate the averaged gradients of the loss in `.grad`."""
        self._add_local_gradients(data, optimizer, retain_graph)
        averaged: set[int] = set()
        if self._is_sharded or _is_reduced_by_ddp(
            self._model, self._wrapper, self._session_state or {}
        ):
            averaged = self._averaged_by_wrapper
        remaining = [
            parameter
            for parameter in optimizer_parameters(optimizer)
            if id(parameter) not in averaged
            and parameter.requires_grad
            and not is_sharded(parameter)
        ]
        if remaining:
            # The optimizer's groups may have been made from a set, whose order differs by process.
            remaining = in_order_of_model(remaining, self._model)
        gradients = [parameter.grad for parameter in remaining]
        averages = average_gradients(gradients, remaining, self._groups)
        for parameter, average in zip(remaining, averages, strict=True):
            parameter.grad = average
        self._expect_buffers()

    def _add_local_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate gradients of this process, which DDP or FSDP2 may average over processes."""
        if not (self._other_models and self._isolates_shards):
            super().add_gradients(data, optimizer, retain_graph)
            return
        trained_ids = set(map(id, self.trained_parameters()))
        # The leaves of the graph are gathered parameters, so they cannot tell the models apart.
        with gradients_set_aside(parameters_of_others(self._other_models, trained_ids)):
            backward(self.scaled_loss(data, optimizer), None, retain_graph)

    def _expect_buffers(self) -> None:
        """Let the next forward pass broadcast the buffers of rank 0."""
        for wrapper in self._wrappers:
            wrapper.require_forward_param_sync = True

    def prepare_given(self, gradients: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Check the given gradients and average them; averaging averages changes nothing."""
        checked = super().prepare_given(gradients, parameters)
        if self.is_merging:
            return [
                gradient.full_tensor() if is_sharded(gradient) else gradient for gradient in checked
            ]
        self._expect_buffers()
        return average_gradients(checked, parameters, self._groups)

    def separate_gradients(
        self, data: Any, optimizer: Any, parameters: Sequence[Parameter], retain_graph: bool
    ) -> list[Tensor | None]:
        """Compute full gradients of this process apart from those in `.grad`."""
        # If FSDP2 reduces gradients in another dtype, those that it has not communicated are in a
        # private attribute, so it must communicate.
        communicates = self._is_sharded and reduces_in_own_dtype(self._model)
        models = [] if communicates else [self._model, *self._other_models]
        with gradients_set_aside(parameters), fsdp_no_sync(models):
            self._add_local_gradients(data, optimizer, retain_graph)
            sharded_ids = map(id, self._parameters)
            gathered = dict(zip(sharded_ids, self._model.parameters(), strict=False))
            return [
                _full_gradient(parameter, gathered.get(id(parameter), parameter))
                for parameter in parameters
            ]

    def average_over_ranks(self, weight: Tensor) -> Tensor:
        """Return the average of a weight over the processes that train the model together."""
        on_device = weight.to(self.trained_parameters()[0].device, torch.float64)
        (mean,) = average_gradients([on_device], [on_device], self._groups)
        assert mean is not None
        return mean

    def apply_averages(
        self,
        parameters: Sequence[Parameter],
        sums: Mapping[Parameter, Tensor],
        divisor: int | Tensor,
    ) -> None:
        """Accumulate the averages of merged gradients over steps and processes in `.grad`."""
        # Another process may have merged gradients of other parameters.
        merged = self._merged_by_any_rank(parameters, sums)
        means = [sums[parameter] / divisor if parameter in sums else None for parameter in merged]
        accumulate_gradients(merged, average_gradients(means, merged, self._groups))
        self._expect_buffers()

    def _merged_by_any_rank(
        self, parameters: Sequence[Parameter], sums: Mapping[Parameter, Tensor]
    ) -> list[Parameter]:
        """List trainable parameters, and those frozen since some process merged their gradients."""
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        if frozen:
            # Only these flags are communicated, and not the gradients of a large frozen part.
            flags = [float(parameter in sums) for parameter in frozen]
            if any(flags) and are_traced():
                raise RuntimeError("a parameter was frozen since its gradients were merged")
            flag_tensor = torch.tensor(flags, device=frozen[0].device)
            (mean_flags,) = average_gradients([flag_tensor], [flag_tensor], self._groups)
            assert mean_flags is not None
            # A trace cannot read the means. A process that has merged such gradients runs this step
            # eagerly, and its next message then differs in size, which is an error.
            is_merged = flags if are_traced() else mean_flags.tolist()
            frozen = [parameter for parameter, flag in zip(frozen, is_merged, strict=True) if flag]
        return [parameter for parameter in parameters if parameter.requires_grad] + frozen

    def updated_parameters(self) -> list[Parameter]:
        """List the parameters of the model, then others that its optimizer updates."""
        if not self._is_sharded:
            return super().updated_parameters()
        optimizer = getattr(self._optimizer_holder, "current_optimizer", None)
        parameters = (*self._parameters, *optimizer_parameters(optimizer))
        return list({id(parameter): parameter for parameter in parameters}.values())


def _full_gradient(parameter: Parameter, gathered: Parameter) -> Tensor | None:
    """Return the full gradient of a parameter, which ops may have used sharded and gathered."""
    gathered_gradient: Tensor | None = None if gathered is parameter else gathered.grad
    gradient: Any = parameter.grad
    if gradient is None:
        return gathered_gradient
    full: Tensor = gradient.full_tensor() if is_sharded(gradient) else gradient
    return full if gathered_gradient is None else gathered_gradient + full


def gradient_function(model: Module) -> Callable[[Tensor, State, bool], list[Any]] | None:
    """Return the function that computes gradients for a GradientOp, or None for a plain model.

    In training they are averages over the processes, sharded as the parameters are.
    """
    kind = parallel_type(model)
    if kind not in ("ddp", "fsdp"):
        return None
    groups = groups_of(model)
    model_parameters = list(model.parameters())

    def differentiate(final: Tensor, state: State, retain_graph: bool) -> list[Any]:
        if kind == "ddp":
            parameters = trainable_parameters(model)
            gradients = list(compute_gradients(final, parameters, False, None, retain_graph))
            if state["mode"] != "train" or state["warmup"]:
                return gradients
            return average_gradients(gradients, parameters, groups)
        # FSDP2 leaves its averages in `.grad` in a backward pass only.
        parameters = [parameter for parameter in model_parameters if parameter.requires_grad]
        updated: list[Parameter] = []
        for updated_model in (*state.get(TRAINED, ()), model):
            optimizer = get_metadata(updated_model, "current_optimizer")
            updated += model_and_optimizer_parameters(updated_model, optimizer)
        leaves, _ = graph_leaves(final)
        with gradients_set_aside([*leaves, *updated, *parameters]):
            backward(final.sum(), None, retain_graph)
            return [parameter.grad for parameter in parameters]

    return differentiate
