"""Runs and updates torch models that are wrapped in DistributedDataParallel or sharded by FSDP2.

FSDP2 averages gradients in every backward pass. DistributedDataParallel does so only in a single
backward pass after a forward pass through the wrapper. Where a step has nothing else, the wrapper
runs; otherwise the model inside it runs, and the update averages the gradients that it needs. So it
does in networks with compiled steps, whether or not a step is compiled: all ranks then communicate
alike, although one may run a step eagerly and another one compiled.
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
        # Some may have been frozen or unfrozen since it was made, and it cannot be told which.
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
    """Return whether a wrapper that is none of some shares parameters, and has buffers."""
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
        and all(one.requires_grad for one in reduced or ())
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
        self._add_own_gradients(data, optimizer, retain_graph)
        done: set[int] = set()
        if self._is_sharded or _is_reduced_by_ddp(
            self._model, self._wrapper, self._session_state or {}
        ):
            done = self._averaged_by_wrapper
        rest = [one for one in optimizer_parameters(optimizer) if id(one) not in done]
        rest = [one for one in rest if one.requires_grad and not is_sharded(one)]
        if rest:
            # The order of the optimizer's groups may be that of a set, another one in each process.
            rest = in_order_of_model(rest, self._model)
        averages = average_gradients([one.grad for one in rest], rest, self._groups)
        for parameter, gradient in zip(rest, averages, strict=True):
            parameter.grad = gradient
        self._expect_buffers()

    def _add_own_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate gradients, of this process only unless DDP or FSDP2 averages them."""
        if not (self._other_models and self._isolates_shards):
            super().add_gradients(data, optimizer, retain_graph)
            return
        own = set(map(id, self.trained_parameters()))
        # The leaves of the graph are gathered parameters, so they cannot tell the models apart.
        with gradients_set_aside(parameters_of_others(self._other_models, own)):
            backward(self.scaled_loss(data, optimizer), None, retain_graph)

    def _expect_buffers(self) -> None:
        """Let the next forward pass broadcast the buffers of rank 0."""
        for wrapper in self._wrappers:
            wrapper.require_forward_param_sync = True

    def prepare_given(self, gradients: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Check the given gradients and average them; averages of averages are the same."""
        checked = super().prepare_given(gradients, parameters)
        if self.is_merging:
            return [one.full_tensor() if is_sharded(one) else one for one in checked]
        self._expect_buffers()
        return average_gradients(checked, parameters, self._groups)

    def separate_gradients(
        self, data: Any, optimizer: Any, parameters: Sequence[Parameter], retain_graph: bool
    ) -> list[Tensor | None]:
        """Compute full gradients of this process apart from those in `.grad`."""
        # FSDP2 keeps what it has not communicated, in a dtype of its own, in a private place.
        communicates = self._is_sharded and reduces_in_own_dtype(self._model)
        models = [] if communicates else [self._model, *self._other_models]
        with gradients_set_aside(parameters), fsdp_no_sync(models):
            self._add_own_gradients(data, optimizer, retain_graph)
            own = map(id, self._parameters)
            gathered = dict(zip(own, self._model.parameters(), strict=False))
            return [_full_gradient(one, gathered.get(id(one), one)) for one in parameters]

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
        means = [sums[one] / divisor if one in sums else None for one in merged]
        accumulate_gradients(merged, average_gradients(means, merged, self._groups))
        self._expect_buffers()

    def _merged_by_any_rank(
        self, parameters: Sequence[Parameter], sums: Mapping[Parameter, Tensor]
    ) -> list[Parameter]:
        """List trainable parameters, and those frozen since some process merged their gradients."""
        frozen = [one for one in parameters if not one.requires_grad]
        if frozen:
            # Gradients of a large frozen part of the model are not communicated.
            own = [float(one in sums) for one in frozen]
            if any(own) and are_traced():
                raise RuntimeError("a parameter was frozen since its gradients were merged")
            is_merged = torch.tensor(own, device=frozen[0].device)
            (shares,) = average_gradients([is_merged], [is_merged], self._groups)
            assert shares is not None
            # A process that has merged some takes this step eagerly. If this one has not, their
            # next messages differ in size, which is an error.
            counts = own if are_traced() else shares.tolist()
            frozen = [one for one, count in zip(frozen, counts, strict=True) if count]
        return [one for one in parameters if one.requires_grad] + frozen

    def updated_parameters(self) -> list[Parameter]:
        """List the parameters of the model, then others that its optimizer updates."""
        if not self._is_sharded:
            return super().updated_parameters()
        optimizer = getattr(self._optimizer_holder, "current_optimizer", None)
        parameters = {id(one): one for one in (*self._parameters, *optimizer_parameters(optimizer))}
        return list(parameters.values())


def _full_gradient(parameter: Parameter, gathered: Parameter) -> Tensor | None:
    """Return the full gradient of a parameter, which ops may have used sharded and gathered."""
    gradient: Tensor | None = None if gathered is parameter else gathered.grad
    if parameter.grad is None:
        return gradient
    sharded: Any = parameter.grad
    own: Tensor = sharded.full_tensor() if is_sharded(sharded) else sharded
    return own if gradient is None else gradient + own


def gradient_function(model: Module) -> Callable[[Tensor, State, bool], list[Any]] | None:
    """Return what computes the gradients of a tensor for a GradientOp; None for a plain model.

    In training they are averages over the processes, sharded as the parameters are.
    """
    kind = parallel_type(model)
    if kind not in ("ddp", "fsdp"):
        return None
    groups = groups_of(model)
    own = list(model.parameters())

    def differentiate(final: Tensor, state: State, retain_graph: bool) -> list[Any]:
        if kind == "ddp":
            parameters = trainable_parameters(model)
            gradients = list(compute_gradients(final, parameters, False, None, retain_graph))
            if state["mode"] != "train" or state["warmup"]:
                return gradients
            return average_gradients(gradients, parameters, groups)
        # FSDP2 leaves its averages in `.grad` in a backward pass only.
        parameters = [one for one in own if one.requires_grad]
        others = [
            one
            for other in (*state.get(TRAINED, ()), model)
            for one in model_and_optimizer_parameters(
                other, get_metadata(other, "current_optimizer")
            )
        ]
        leaves, _ = graph_leaves(final)
        with gradients_set_aside([*leaves, *others, *parameters]):
            backward(final.sum(), None, retain_graph)
            return [parameter.grad for parameter in parameters]

    return differentiate
