"""How the steps of an opening are run in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from fastnet._execute import BoundPlan
from fastnet._nest import NestMap
from fastnet.backend.facts import fact
from fastnet.backend.precision import Precision
from fastnet.backend.torch.companions import TRAINED
from fastnet.backend.torch.engines import engine_of, process_count
from fastnet.backend.torch.ranges import op_ranges
from fastnet.network.metering import Ranges, titles
from fastnet.network.opening import Opening
from fastnet.network.runner import Runner
from fastnet.network.torch.parallel import EXCHANGES, exchanges_of, require_communicating
from fastnet.network.torch.ranks import ranks_of
from fastnet.types import Model, State
from fastnet.util import NonContext

__all__ = ["TorchRunner"]


class TorchRunner(Runner):
    """Runs the steps of an opening in PyTorch.

    Args:
        opening: The opening.
        device: Where ops run.
        mixed_precision: Whether they run under autocast, and in which type: True for what is usual
            on the device.
        models: The models of the network, in force or not.
        keeps: Whether models stay on the device when the opening ends.
        brings: Whether outputs are copied from the device.
    """

    def __init__(
        self,
        opening: Opening,
        device: torch.device,
        mixed_precision: Precision,
        models: Iterable[Model],
        keeps: bool,
        brings: bool,
    ) -> None:
        super().__init__(opening)
        self._keeps = keeps
        self._brings = brings
        self._device = device
        self._models = models
        self._mixed_precision = mixed_precision
        if mixed_precision:
            self.context = "autocast", "autocast"

    def open(self) -> None:
        """Bring the models in force, and what their optimizers keep, to the device.

        Raises:
            ValueError: If a model would be updated that nothing keeps the same in all processes.
        """
        self.opening.state["tape"] = NonContext()
        if process_count() > 1:
            self.ranks = ranks_of(self.opening)
            if self.opening.state["mode"] == "train":
                require_communicating(self.opening.layout)
        for model in self.opening.layout.models:
            if self._device.type != "cpu" or not _is_on_cpu(model):
                self._move(model, self._device)

    def close(self) -> None:
        """Bring them back to the CPU, unless they stay on the device."""
        if not self._keeps and self._device.type != "cpu":
            for model in self.opening.layout.models:
                self._move(model, torch.device("cpu"))
        if self.ranks is not None:
            self.ranks.end()

    def bind(self) -> BoundPlan:
        """Bind the plan, in mixed precision with autocast around the ops of each step."""
        plan, precision = self.opening.layout.plan, self._mixed_precision
        if not precision:
            return BoundPlan(plan, self._state())
        dtype = None if precision is True else getattr(torch, str(precision))
        # one for each step: it keeps what to go back to, and steps may be inside of each other
        return BoundPlan(plan, self._state(), partial(torch.autocast, self._device.type, dtype))

    def ranges(self) -> Ranges:
        """Return the object that names the ops to torch's profiler."""
        return op_ranges(partial(titles, self.opening.layout.ops))

    def waiter(self) -> Callable[[], None] | None:
        """Return the function that waits for the stream of the caller; None without copies."""
        if self._device.type != "cuda" or not self._brings:
            return None
        device = self._device

        def wait() -> None:
            torch.cuda.current_stream(device).synchronize()

        return wait

    def _state(self) -> State:
        layout, state = self.opening.layout, self.opening.state
        if not layout.takes_gradients:
            return state
        # those of other epochs too: a gradient that is left on one would count there
        models = {id(model): model for model in (*self._models, *layout.models)}
        trained = [one for one in models.values() if fact(one, "optimizer") is not None]
        exchanges = exchanges_of(layout, trained)
        if exchanges is not None:
            state = {**state, EXCHANGES: exchanges}
        return {**state, TRAINED: trained} if len(trained) > 1 else state

    def _move(self, model: Model, device: torch.device) -> None:
        if engine_of(model) in ("ddp", "fsdp"):
            return  # it is where its engine runs it
        model.to(device)
        if self.opening.state["mode"] == "train":
            move_optimizer(fact(model, "current_optimizer"), device)


def _is_on_cpu(model: torch.nn.Module) -> bool:
    first = next(model.parameters(), None)
    return first is None or first.device.type in ("cpu", "meta")


def move_optimizer(optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Move an optimizer's state to a device.

    A count of steps stays on the CPU, where the optimizer reads it, unless the optimizer says that
    it wants it with the parameters.

    Args:
        optimizer: The optimizer, or None for none.
        device: Where to.

    Raises:
        RuntimeError: If the device has no room, or is not there.
    """
    if optimizer is None:
        return
    move = NestMap(torch.Tensor, lambda tensor: tensor.to(device))
    for group in optimizer.param_groups:
        moves_count = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state = optimizer.state[parameter]
                for key, value in state.items():
                    if key != "step" or moves_count:
                        state[key] = move(value)
