"""Networks of torch models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from fastnet._guard import call_within
from fastnet._nest import NestMap
from fastnet.backend.facts import fact
from fastnet.backend.torch.companions import TRAINED
from fastnet.backend.torch.foreign import ARRAYS, FOREIGN
from fastnet.backend.torch.ranges import op_ranges, profiler_is_on
from fastnet.network.base import BaseNetwork, Step, _Opening
from fastnet.network.layout import Adopt, Setting
from fastnet.network.metering import Ranges, StepMeter, titles
from fastnet.schedule import get_current_items
from fastnet.types import State
from fastnet.util import NonContext, get_device

__all__ = ["TorchNetwork"]


class TorchNetwork(BaseNetwork):
    """A network whose ops run in PyTorch.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        postprocessing: Ops on numpy arrays, for whole batches, which run on the CPU after the rest.
        slicers: What cuts a batch into minibatches and joins their results.

    Raises:
        AssertionError: If something is no op, postprocessing op or slicer.
        ValueError: If only some models have mixed precision, or a postprocessing op would drop or
            make batches.

    >>> import torch
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": torch.tensor([1.0, 2.0])})["y"]
    tensor([2., 4.])
    """

    device: torch.device

    def __init__(self, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
        super().__init__(
            target_type="torch",
            device=get_device(),
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )

    def _move_in(self) -> None:
        device = get_device()
        if device != self.device:
            self.device = device
            for op in get_current_items(self.ops):
                self._build(op)

    def _first_deferred(self, ops: list[Any]) -> int:
        # Updates that stand last in a row wait for each other's gradients: a model that one of
        # them has already changed would spoil the graph of the next.
        first = len(ops)
        while first and hasattr(ops[first - 1], "defer"):
            first -= 1
        return first

    def _value_maps(self) -> tuple[NestMap | None, NestMap | None]:
        device = self.device
        if device.type == "cpu":
            return None, NestMap(torch.Tensor, torch.Tensor.detach, when="requires_grad")
        # copies of a GPU are only queued here, and waited for once, at the step's end
        queue = device.type == "cuda"

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=queue)

        def release(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("cpu", non_blocking=queue)

        return NestMap(torch.Tensor, move), NestMap(torch.Tensor, release)

    def _adoption(self) -> Adopt:
        return torch.Tensor, FOREIGN, ARRAYS

    def _step_setting(self, gradients: bool) -> Setting | None:
        if gradients:
            return None
        # what torch.no_grad does, without its Python
        return torch.is_grad_enabled, torch._C._set_grad_enabled, False

    def _enter_models(self, opening: _Opening) -> None:
        opening.state["tape"] = NonContext()
        if self.device.type == "cpu":
            return
        for model in opening.layout.models:
            model.to(self.device)
            if opening.state["mode"] == "train":
                move_optimizer(fact(model, "current_optimizer"), self.device)

    def _exit_models(self, opening: _Opening) -> None:
        if self.device.type == "cpu":
            return
        for model in opening.layout.models:
            model.to("cpu")
            if opening.state["mode"] == "train":
                move_optimizer(fact(model, "current_optimizer"), torch.device("cpu"))

    def _step_state(self, opening: _Opening) -> State:
        if not opening.layout.takes_gradients:
            return opening.state
        # those of other epochs too: a gradient that is left on one would count there
        models = {id(model): model for model in (*self.models, *opening.layout.models)}
        trained = [one for one in models.values() if fact(one, "optimizer") is not None]
        return {**opening.state, TRAINED: trained} if len(trained) > 1 else opening.state

    def _make_step(self, opening: _Opening) -> Step | None:
        if not self.mixed_precision:
            return None
        plan, state, device = opening.layout.plan, opening.step_state, self.device.type

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            # one for each step: it keeps what to go back to, and steps may be inside of each other
            return call_within(torch.autocast(device), plan.step, batch, state)

        return run

    def _make_metered_step(self, opening: _Opening, meter: StepMeter) -> Step:
        run_ops = super()._make_metered_step(opening, meter)
        if not self.mixed_precision:
            return run_ops
        log, row, device = meter.log, meter.row("autocast", "autocast"), self.device.type

        def run_inside(batch: Mapping[str, Any]) -> dict[str, Any]:
            log.stamp(row)
            return run_ops(batch)

        def run(batch: Mapping[str, Any]) -> dict[str, Any]:
            result = call_within(torch.autocast(device), run_inside, batch)
            log.stamp(row)
            return result

        return run

    def _is_profiled(self) -> bool:
        return profiler_is_on()

    def _ranges(self, opening: _Opening) -> Ranges:
        return op_ranges(partial(titles, opening.layout.ops))

    def _waiter(self) -> Callable[[], None] | None:
        if self.device.type != "cuda":
            return None
        device = self.device

        def wait() -> None:
            # the stream that the caller runs this very step on
            torch.cuda.current_stream(device).synchronize()

        return wait


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
