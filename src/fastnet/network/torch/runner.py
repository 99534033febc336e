"""Runs the steps of an open network in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from fastnet._execute import UNDO, BoundPlan
from fastnet._nest import NestMap
from fastnet.backend.model_metadata import get_metadata
from fastnet.backend.precision import Precision
from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on
from fastnet.backend.torch.parallel_update import REDUCED_BY_DDP
from fastnet.backend.torch.parameters import parameters_in
from fastnet.backend.torch.update import TRAINED
from fastnet.backend.torch.wrappers import parallel_type, reshard, world_size
from fastnet.network.context import NetworkContext, Runner
from fastnet.network.step import StepMeter, titles
from fastnet.network.torch.parallel import (
    compare_batches,
    compare_plans,
    find_reduced_by_ddp,
    require_engines,
    require_plain_models,
)
from fastnet.network.trace_records import Records
from fastnet.types import Model, RunStep, State
from fastnet.util import NonContext
from fastnet.util.devices import has_accelerator

if TYPE_CHECKING:
    from fastnet.network.torch.compiled.step import CompiledStep

# Ops written for FastEstimator enter the state's tape, which PyTorch does not need.
_NO_TAPE = NonContext()
# The runners of the open contexts that train.
_training: WeakSet[TorchRunner] = WeakSet()
_opening = Lock()


class TorchRunner(Runner):
    """Runs the steps of a context in PyTorch.

    Args:
        network: The network.
        context: The context.
    """

    # Whether there are other processes, and whether all take part in each step; set by `open`.
    _is_distributed = _communicates = False

    def __init__(self, network: Any, context: NetworkContext) -> None:
        super().__init__(context)
        self._keeps_on_device: bool = network._keeps_on_device
        self._wait: Callable[[], None] | None = network._plans.step_options.wait
        self._device: torch.device = network.device
        self._models: list[Model] = network.models
        self._mixed_precision: Precision = network.mixed_precision
        if self._mixed_precision:
            self.context_row = "autocast", "autocast"
        self._compiled = None if network._options is None else _compiled_step(network, context)
        self._updated: set[torch.Tensor] = set()

    def open(self) -> None:
        """Move the active models and their optimizers' state to the device; clear old gradients.

        Raises:
            ValueError: If a model would be updated that is not synchronized between processes, or a
                gradient differentiated twice beside a sharded one.
        """
        self.context.state["tape"] = _NO_TAPE
        if self.context.plan.takes_gradients:
            self.context.state[UNDO] = []
        models = self.context.plan.models
        if self.context.plan.takes_gradients:
            require_plain_models(self.context.plan)
        # Without models nothing is communicated.
        has_group = dist.is_available() and dist.is_initialized()
        self._is_distributed = has_group and bool(models) and world_size() > 1
        if self._is_distributed:
            if self.context.state["mode"] == "train":
                require_engines(self.context.plan)
            self._communicates = compare_plans(self.context)
        for model in models:
            if self._device.type != "cpu" or (has_accelerator() and not _is_on_cpu(model)):
                self._move(model, self._device)
        if self.context.state["mode"] == "train" and not self.context.state["warmup"]:
            self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Clear the gradients of all that is updated, except for what others are training."""
        for model in self.context.plan.models:
            self._updated.update(parameters_in(get_metadata(model, "current_optimizer")))
        with _opening:
            # A step may be running in another thread, or around the op that opens this network.
            others: set[torch.Tensor] = set().union(*(runner._updated for runner in _training))
            for parameter in self._updated - others:
                parameter.grad = None
            _training.add(self)

    def close(self) -> None:
        """Move the models back to the CPU, unless they stay on the device."""
        with _opening:
            _training.discard(self)
        if self._compiled is not None:
            self._compiled.records.summarize()
        if self._is_distributed:
            for model in self.context.plan.models:
                reshard(model)
        if not self._keeps_on_device and self._device.type != "cpu":
            for model in self.context.plan.models:
                self._move(model, torch.device("cpu"))

    def check_loader(self, loader: Any) -> None:
        """Raise a ValueError if ranks that communicate have different numbers of batches."""
        if self._communicates:
            compare_batches(loader)

    def bind(self) -> BoundPlan:
        """Bind the plan, in mixed precision with autocast around the ops of each step."""
        kernel = self.context.plan.kernel
        if not self._mixed_precision:
            return BoundPlan(kernel, self._state())
        return BoundPlan(kernel, self._state(), self._autocast())

    def _autocast(self) -> Callable[[], Any] | None:
        precision = self._mixed_precision
        if not precision:
            return None
        dtype = None if precision is True else getattr(torch, str(precision))
        # Each step enters a new context, which stores the state to restore: steps may be nested.
        return partial(torch.autocast, self._device.type, dtype)

    def step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, timed by `meter` if there is one."""
        captured = self._compiled
        if captured is None:
            return super().step(meter)
        if captured.fallback_reason is None:
            from fastnet.network.torch.compiled.step import never_captured

            reason = never_captured(self.context.plan, self._device, self._is_distributed)
            if reason is not None:
                captured.fall_back(reason, self.context.state)
        on_call = on_trace = None
        if meter is not None:
            on_call = partial(meter.log.stamp, meter.row("graph", "compiled step"))
            on_trace = meter.trace_stamper(meter.row("rest", "other"))
        return captured.step(
            partial(self.step_by, meter), self.bound, self._autocast(), on_call, on_trace
        )

    def is_profiled(self) -> bool:
        """Return whether torch's profiler is on."""
        return profiler_is_on()

    def ranges(self) -> OpRanges:
        """Return the object that names the ops to torch's profiler."""
        return OpRanges(titles(self.context.plan.ops), record_function, profiler_is_on)

    def synchronizer(self) -> Callable[[], None] | None:
        """Return the function that synchronizes the current stream; None if nothing is copied."""
        # Keys that only postprocessing reads are also copied.
        return self._wait if self.context.plan.kernel.resolution.returned else None

    def _state(self) -> State:
        plan, state = self.context.plan, self.context.state
        if not plan.takes_gradients:
            return state
        # Include models of other epochs, whose leftover gradients would leak into later steps.
        models = {id(model): model for model in (*self._models, *plan.models)}
        trained = [m for m in models.values() if get_metadata(m, "optimizer") is not None]
        if self._is_distributed and not state["warmup"]:
            state = {**state, REDUCED_BY_DDP: find_reduced_by_ddp(plan, trained)}
        # In mixed precision a single one is listed, too, for its loss scale.
        lists = len(trained) > 1 or (trained and self._mixed_precision)
        return {**state, TRAINED: trained} if lists else state

    def _move(self, model: Model, device: torch.device) -> None:
        if parallel_type(model) in ("ddp", "fsdp"):
            return  # The wrapper has placed it.
        model.to(device)
        if self.context.state["mode"] == "train":
            move_optimizer(get_metadata(model, "current_optimizer"), device)


def make_runner(network: Any, context: NetworkContext) -> TorchRunner:
    """Create the runner of a context; assigned as a method of `TorchNetwork`."""
    return TorchRunner(network, context)


def _compiled_step(network: Any, context: NetworkContext) -> CompiledStep | None:
    """Return the `CompiledStep` of a context, or None if its steps run eagerly."""
    if context.state["eager"] or not context.plan.ops:
        return None
    # Import lazily, because eager networks do not need these parts of torch.
    from fastnet.network.torch.compiled.step import CompiledStep

    if network._records is None:
        network._records = Records("eagerly")
    programs, key = context.plan.programs, ("captured", bool(context.state["warmup"]))
    if key not in programs:
        programs[key] = CompiledStep(
            context.plan,
            network._options,
            network._records,
            network._plans.step_options,
            network.device,
        )
    found: CompiledStep = programs[key]
    return found


def _is_on_cpu(model: torch.nn.Module) -> bool:
    first = next(model.parameters(), None)
    return first is None or first.device.type in ("cpu", "meta")


def move_optimizer(optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Move an optimizer's state to a device.

    Step counts stay on the CPU, as in torch, unless the optimizer is capturable or fused.

    Args:
        optimizer: The optimizer, or None for none.
        device: The target device.

    Raises:
        RuntimeError: If the device is out of memory or not available.
    """
    if optimizer is None:
        return
    move = NestMap(torch.Tensor, lambda tensor: tensor.to(device))
    for group in optimizer.param_groups:
        moves_step = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state = optimizer.state[parameter]
                for key, value in state.items():
                    if key != "step" or moves_step:
                        state[key] = move(value)
