"""Sessions of networks in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
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
from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on
from fastnet.backend.torch.parallel_update import AVERAGED_BY_UPDATES, REDUCED_BY_DDP
from fastnet.backend.torch.parameters import optimizer_parameters
from fastnet.backend.torch.update import TRAINED
from fastnet.backend.torch.wrappers import parallel_type, reshard, world_size
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_set import key_of_ops
from fastnet.network.session import Session
from fastnet.network.step import REST_ROW, StepMeter, titles
from fastnet.network.torch.parallel import (
    compare_batches,
    compare_plans,
    find_reduced_by_ddp,
    require_engines,
    require_plain_models,
)
from fastnet.types import Model, RunStep, State
from fastnet.util import NonContext
from fastnet.util.devices import has_accelerator

if TYPE_CHECKING:
    from fastnet.network.torch.compiled.session import CompiledSession
    from fastnet.network.torch.network import TorchNetwork

# Ops written for FastEstimator enter the state's tape, which PyTorch does not need.
_NO_TAPE = NonContext()
# The sessions of open networks that train.
_training: WeakSet[TorchSession] = WeakSet()
_training_lock = Lock()


class TorchSession(Session):
    """A session of a `TorchNetwork`: adds the device, autocast, other processes, and programs."""

    _network: TorchNetwork
    # Whether there are other processes, and whether all take part in each step.
    _is_distributed = False
    _communicates = False
    # Why no step is compiled, whatever its batch; None if steps may be.
    _reason_not_to_compile: str | None = None

    def __init__(self, network: TorchNetwork, plan: ExecutionPlan, state: State) -> None:
        super().__init__(network, plan, state)
        self._device = network.device
        if network.mixed_precision:
            self.context_row = "autocast", "autocast"
        # The parameters that the optimizers of the active models update.
        self._updated: set[torch.Tensor] = set()
        self._compiled: CompiledSession | None = None

    def check_loader(self, loader: Any) -> None:
        """Raise a ValueError if ranks that communicate have different numbers of batches."""
        if self._communicates:
            compare_batches(loader)

    def _acquire(self) -> None:
        """Prepare the active models and the state.

        Ranks compare what they will run; models and their optimizers' state move to the device; in
        training old gradients are cleared, and the state gets what updates read.

        Raises:
            ValueError: If a model would be updated that is not synchronized between processes, or
                second-order gradients are taken beside a sharded model.
        """
        plan, state = self.plan, self.state
        state["tape"] = _NO_TAPE
        # Updates run in any mode that has UpdateOps; optimizers' old gradients, and what other
        # processes do, concern mode "train" alone.
        if plan.takes_gradients:
            state[UNDO] = {}
            require_plain_models(plan)

        # Without models nothing is communicated.
        has_group = dist.is_available() and dist.is_initialized()
        self._is_distributed = has_group and bool(plan.models) and world_size() > 1
        if self._is_distributed and state["mode"] == "train":
            require_engines(plan)
        if self._is_to_compile:
            # Import lazily, because eager networks do not need these parts of torch.
            from fastnet.network.torch.compiled.session import reason_not_to_compile

            self._reason_not_to_compile = reason_not_to_compile(
                plan, self._device, self._is_distributed
            )
        if self._is_distributed:
            self._communicates = compare_plans(plan, state, self._may_compile)

        for model in plan.models:
            if self._device.type != "cpu" or (has_accelerator() and not _is_on_cpu(model)):
                self._move(model, self._device)
        if state["mode"] == "train" and not state["warmup"]:
            self._clear_gradients()
        if plan.takes_gradients:
            self._note_trained_models()

    def _clear_gradients(self) -> None:
        """Clear the gradients of updated parameters, but not of those that open sessions train."""
        for optimizer in self.optimizers:
            self._updated.update(optimizer_parameters(optimizer))
        with _training_lock:
            # A step may be running in another thread, or around the op that enters this network.
            in_training: set[torch.Tensor] = set()
            in_training.update(*(session._updated for session in _training))
            for parameter in self._updated - in_training:
                parameter.grad = None
            _training.add(self)

    def _note_trained_models(self) -> None:
        """Add to the state which models are trained, for updates."""
        plan, state = self.plan, self.state
        # Include models of other epochs, whose leftover gradients would leak into later steps.
        models = {id(model): model for model in (*self._network.models, *plan.models)}
        trained = [
            model for model in models.values() if get_metadata(model, "optimizer") is not None
        ]
        if self._is_distributed and not state["warmup"]:
            state[REDUCED_BY_DDP] = find_reduced_by_ddp(plan, trained)
            state[AVERAGED_BY_UPDATES] = self._may_compile
        # Loss scaling needs the list even for a single model.
        if len(trained) > 1 or (trained and self._network.mixed_precision):
            state[TRAINED] = trained

    def _release(self) -> None:
        """Move the models back to the CPU, unless they stay on the device."""
        with _training_lock:
            _training.discard(self)
        if self._is_distributed:
            for model in self.plan.models:
                reshard(model)
        if not self._network._keeps_on_device and self._device.type != "cpu":
            for model in self.plan.models:
                self._move(model, torch.device("cpu"))
        if self._compiled is not None:
            self._network._records.summarize()

    def _move(self, model: Model, device: torch.device) -> None:
        if parallel_type(model) in ("ddp", "fsdp"):
            return  # The wrapper has placed it.
        model.to(device)
        if self.state["mode"] == "train":
            move_optimizer(get_metadata(model, "current_optimizer"), device)

    def _bind(self) -> BoundPlan:
        """Bind the plan, in mixed precision with autocast, and find its programs, if any."""
        make_autocast = self._autocast()
        self._compiled = self._compiled_session(make_autocast)
        return BoundPlan(self.plan.kernel, self.state, make_autocast)

    @property
    def _is_to_compile(self) -> bool:
        """Whether steps are to be compiled, if they can be."""
        is_eager = self._network._compile_options is None or self.state["eager"]
        return bool(self.plan.ops) and not is_eager

    @property
    def _may_compile(self) -> bool:
        """Whether steps are to be compiled, and nothing prevents that whatever the batch."""
        return self._is_to_compile and self._reason_not_to_compile is None

    def _compiled_session(
        self, make_autocast: Callable[[], AbstractContextManager[Any]] | None
    ) -> CompiledSession | None:
        """Return the compiled steps of the session, or None if all steps run eagerly."""
        network, plan, state = self._network, self.plan, self.state
        options = network._compile_options
        if options is None or not self._is_to_compile:
            return None
        from fastnet.network.torch.compiled.program_set import TorchProgramSet
        from fastnet.network.torch.compiled.session import CompiledSession

        programs = network._program_sets.find(
            plan,
            (key_of_ops(plan, state), str(self._device), str(network.mixed_precision)),
            lambda: TorchProgramSet(
                plan, options, network._records, self._device, network._dynamic_axes
            ),
        )
        if programs.fallback_reason is None and self._reason_not_to_compile is not None:
            programs.clear()
            programs.fall_back(self._reason_not_to_compile, state)
        return CompiledSession(programs, state, make_autocast, network._plan_cache.step_options)

    def _autocast(self) -> Callable[[], AbstractContextManager[Any]] | None:
        precision = self._network.mixed_precision
        if not precision:
            return None
        dtype = None if precision is True else getattr(torch, str(precision))
        # Each step enters a new context, which stores the state to restore: steps may be nested.
        return partial(torch.autocast, self._device.type, dtype)

    def _make_step(self, meter: StepMeter | None) -> RunStep:
        """Return the function that runs a minibatch, by compiled programs if the network has any.

        Args:
            meter: What times the step, or None.
        """
        compiled = self._compiled
        if compiled is None:
            return self._make_eager_step(meter)

        on_call = on_compile = None
        if meter is not None:
            on_call = partial(meter.log.stamp, meter.row("graph", "compiled step"))
            on_compile = meter.trace_stamper(meter.row(*REST_ROW))
        return compiled.step(self._make_eager_step(meter), on_call, on_compile)

    def _make_consecutive_step(self) -> RunStep | None:
        compiled = self._compiled
        return None if compiled is None else compiled.consecutive_step(self._make_eager_step(None))

    def _ranges(self) -> OpRanges:
        """Return the object that names the ops to torch's profiler."""
        return OpRanges(titles(self.plan.ops), record_function, profiler_is_on)


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
