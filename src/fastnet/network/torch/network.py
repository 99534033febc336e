"""Networks of torch models."""

from __future__ import annotations

from typing import Any

import torch

from fastnet._nest import NestMap
from fastnet.backend.torch._internals import set_grad_enabled
from fastnet.backend.torch.foreign import ARRAYS, FOREIGN
from fastnet.network.base import BaseNetwork
from fastnet.network.layout import Handling, Setting
from fastnet.network.opening import Opening
from fastnet.network.torch.runner import TorchRunner
from fastnet.schedule import get_current_items
from fastnet.util import get_device

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
            device=self._choose_device(),
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )

    def _move_in(self) -> None:
        device = self._choose_device()
        if device != self.device:
            self.device = device
            for op in get_current_items(self.ops):
                self._build(op)

    def _choose_device(self) -> torch.device:
        return get_device()

    def _first_deferred(self, ops: list[Any]) -> int:
        # Updates that stand last in a row wait for each other's gradients: a model that one of
        # them has already changed would spoil the graph of the next.
        first = len(ops)
        while first and hasattr(ops[first - 1], "defer"):
            first -= 1
        return first

    def _handling(self) -> Handling:
        handling = Handling(adopt=(torch.Tensor, FOREIGN, ARRAYS), setting=_no_gradients)
        device = self.device
        if device.type == "cpu":
            release = NestMap(torch.Tensor, torch.Tensor.detach, when="requires_grad")
            return handling._replace(release=release)
        # copies of a GPU are only queued here, and waited for once, at the step's end
        queue = device.type == "cuda"

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=queue)

        def release_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("cpu", non_blocking=queue)

        return handling._replace(
            move=NestMap(torch.Tensor, move), release=NestMap(torch.Tensor, release_to_cpu)
        )

    def _make_runner(self, opening: Opening) -> TorchRunner:
        return TorchRunner(opening, self.device, self.mixed_precision, self.models)


def _no_gradients(gradients: bool) -> Setting | None:
    if gradients:
        return None
    # what torch.no_grad does
    return torch.is_grad_enabled, set_grad_enabled, False
