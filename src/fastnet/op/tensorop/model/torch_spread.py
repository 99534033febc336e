"""What ModelOp and UpdateOp do with a torch model that is spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fastnet.backend.model_update import Followers
from fastnet.backend.torch.averaging import average_held, averaged
from fastnet.backend.torch.engines import engine_of, groups_of, is_sharded, wrapper_of
from fastnet.backend.torch.exchange import EXCHANGES, Exchange
from fastnet.backend.torch.models import TorchPass
from fastnet.backend.torch.sharded import (
    accumulates_apart,
    begin_anew,
    gather_no_more,
    not_communicating,
)
from fastnet.backend.torch.update import (
    TRAINED,
    TorchUpdate,
    accumulate_gradients,
    backward,
    cleared_gradients,
    parameters_in,
    parameters_of,
    parameters_of_others,
)
from fastnet.types import State

__all__ = ["SpreadPass", "SpreadUpdate", "make_pass", "make_update"]


def make_pass(model: torch.nn.Module, **settings: Any) -> TorchPass:
    """Make what runs a model.

    Args:
        model: The model.
        settings: The settings of the op, as for `TorchPass`.

    Returns:
        The pass that fits the engine of the model.
    """
    cls = SpreadPass if engine_of(model) == "ddp" else TorchPass
    return cls(model, **settings)


def make_update(op: Any, reports: Sequence[str]) -> TorchUpdate:
    """Return the update of an UpdateOp that fits the engine of its model."""
    cls = SpreadUpdate if engine_of(op.model) in ("ddp", "fsdp") else TorchUpdate
    return cls(op, reports)


class SpreadPass(TorchPass):
    """What a ModelOp does with a model in DistributedDataParallel.

    Only steps of training communicate: else the model in the wrapper is run by itself.
    """

    _exchange: Exchange | None = None

    def __init__(self, model: torch.nn.Module, **settings: Any) -> None:
        super().__init__(model, **settings)
        wrapper: Any = wrapper_of(model)
        self._inner: torch.nn.Module = wrapper.module

    def _open(self, data: Any, state: State) -> None:
        exchanges = state.get(EXCHANGES)
        self._exchange = None if exchanges is None else exchanges.of.get(id(self._model))
        super()._open(data, state)

    def _run(self, data: Any) -> Any:
        exchange = self._exchange
        if exchange is None or not self._gradients:
            model: Callable[..., Any] = self._inner
        else:
            model = exchange.model()
        if self._by_name is not None:
            model = self._by_name.of(model)
        if self._gradients:
            return model(*data) if self._spread else model(data)
        with torch.no_grad():
            return model(*data) if self._spread else model(data)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_exchange": None}


class SpreadUpdate(TorchUpdate):
    """What an UpdateOp does with a model in DistributedDataParallel, or one that FSDP2 has sharded.

    Gradients are averaged over the processes when an update needs them, and not before: of
    gradients that are merged, the sums.

    Args:
        op: The op.
    """

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        self._entered: State | None = None
        self._exchange: Exchange | None = None
        self._are_averages = False
        self._meets_shards = False
        # what is trained, and not by the engine
        self._beside: list[torch.nn.Parameter] = []
        self._is_sharded = engine_of(op.model) == "fsdp"
        gather_no_more(op.model)
        self._own = list(op.model.parameters()) if self._is_sharded else []
        self._groups = groups_of(op.model)
        self._accumulates_apart = self._is_sharded and accumulates_apart(op.model)

    def __call__(
        self, data: Any, state: State, defer: bool, retain_graph: bool, followers: Followers = ()
    ) -> list[Any] | None:
        """Run the sequence of `TorchUpdate`, with gradients averaged over the processes."""
        if state is not self._entered and not state["warmup"]:
            self._enter(state)
        if self._given and self._is_sharded:
            # so that the model has its own parameters again
            gather_no_more(self._model)
        return super().__call__(data, state, defer, retain_graph, followers)

    def __getstate__(self) -> dict[str, Any]:
        # an opening is of one network
        return {**super().__getstate__(), **_OUTSIDE}

    def _enter(self, state: State) -> None:
        """Do what is needed once each time that a network is opened."""
        exchanges = state.get(EXCHANGES)
        self._exchange = None if exchanges is None else exchanges.of.get(id(self._model))
        self._are_averages = exchanges is not None and id(self._op) in exchanges.averaged
        models = [self._model, *state.get(TRAINED, ())]
        self._meets_shards = any(engine_of(model) == "fsdp" for model in models)
        everything = parameters_of(self._model, self.optimizer())
        if self._is_sharded:
            everything = [*self._own, *parameters_in(self.optimizer())]
        known = set() if self._exchange is None else set(map(id, self._exchange.known))
        self._beside = [one for one in everything if not is_sharded(one) and id(one) not in known]
        self._entered = state

    def abandon(self) -> None:
        """Clear the gradients of the model and its optimizer, and what the step has merged."""
        super().abandon()
        if self._is_sharded:
            begin_anew(self._model)

    def add_gradients(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Accumulate the averages of the gradients of the loss in `.grad`."""
        self._add_here(data, optimizer, retain_graph)
        exchange = self._exchange
        if self._is_sharded or (exchange is not None and exchange.has_averaged()):
            rest = [one for one in self._beside if one.requires_grad]
        else:
            rest = self.trained_now()
        if rest:
            average_held(rest, self._groups)

    def _add_here(self, data: Any, optimizer: Any, retain_graph: bool) -> None:
        """Add gradients; whatever the engine does not average is this process's own."""
        if not self._meets_shards:
            super().add_gradients(data, optimizer, retain_graph)
            return
        loss = self.scaled_loss(data, optimizer)
        own = set(map(id, self.trained_now()))
        with cleared_gradients(parameters_of_others(self._others, own)):
            # The leaves are not the parameters, which are put together for a while: the engine
            # takes gradients from there.
            backward(loss, None, retain_graph)

    def checked(self, gradients: Any, parameters: Sequence[torch.nn.Parameter]) -> Sequence[Any]:
        """Check the given gradients, and average those of one process."""
        checked = super().checked(gradients, parameters)
        if self.is_merging:
            return checked
        self._expect_buffers()
        return checked if self._are_averages else averaged(checked, parameters, self._groups)

    def separate_gradients(
        self,
        data: Any,
        optimizer: Any,
        parameters: Sequence[torch.nn.Parameter],
        retain_graph: bool,
    ) -> list[torch.Tensor | None]:
        """Compute this process's gradients apart from those in `.grad`."""
        with cleared_gradients(parameters):
            if not self._accumulates_apart:
                self._add_here(data, optimizer, retain_graph)
                return [parameter.grad for parameter in parameters]
            with not_communicating([self._model, *self._others]):
                self._add_here(data, optimizer, retain_graph)
                wholes = zip(map(id, self._own), self._model.parameters(), strict=True)
                by_id = dict(wholes)
                return [_own_gradient(one, by_id.get(id(one), one)) for one in parameters]

    def apply_averages(
        self,
        counted: Sequence[torch.nn.Parameter],
        sums: Mapping[torch.nn.Parameter, torch.Tensor],
        times: int,
    ) -> None:
        """Accumulate the averages of merged gradients over steps and processes in `.grad`."""
        self._expect_buffers()
        if self._given and self._are_averages:
            super().apply_averages(counted, sums, times)
            return
        # all of them, as another process may have sums of others
        trained = self.trained_now()
        means = [sums[one] / times if one in sums else None for one in trained]
        accumulate_gradients(trained, averaged(means, trained, self._groups))

    def trained_now(self) -> list[torch.nn.Parameter]:
        """List the trainable parameters of the model, then others that its optimizer updates."""
        if not self._is_sharded:
            return super().trained_now()
        # between a forward and a backward pass the model has others in the places of its own
        own = {id(one): one for one in self._own}
        own.update((id(one), one) for one in parameters_in(self.optimizer()))
        return [one for one in own.values() if one.requires_grad]

    def _expect_buffers(self) -> None:
        if self._exchange is not None:
            self._exchange.expect_buffers()


# what an update has while no network is opened
_OUTSIDE: dict[str, Any] = {"_entered": None, "_exchange": None, "_beside": []}


def _own_gradient(parameter: torch.nn.Parameter, whole: torch.nn.Parameter) -> torch.Tensor | None:
    """Return this process's gradient of a whole parameter.

    Args:
        parameter: The parameter; it may have a gradient of what an op has made of the shards.
        whole: The parameter while it is put together, or itself.
    """
    gradient = whole.grad
    if whole is parameter or parameter.grad is None:
        return gradient
    of_shards: Any = parameter.grad
    added: torch.Tensor = of_shards.full_tensor()
    return added if gradient is None else gradient + added
