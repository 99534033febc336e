"""Networks of torch models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

from fastnet._nest import NestMap
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch._internals import set_grad_enabled
from fastnet.backend.torch.parameters import trainable_in
from fastnet.backend.torch.tensors import ARRAYS, FOREIGN
from fastnet.backend.torch.wrappers import engine_of
from fastnet.errors import shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.compile_options import CompileOptions, read_compile
from fastnet.network.plan_cache import Handling, PlanCache, Setting
from fastnet.network.torch.runner import make_runner, move_optimizer
from fastnet.network.trace_records import Records, TraceRecord
from fastnet.network.validation import collect_models
from fastnet.op.tensorop.model.untrained import warn_of_untrained
from fastnet.schedule import get_current_items
from fastnet.types import Model, NumpyOps, Ops, Slicers, is_given
from fastnet.util import get_device, to_list
from fastnet.util.devices import resolve_device, stream_synchronizer

__all__ = ["TorchNetwork"]

_RETURNS = ("cpu", "device", None)
# The only desired key where no outputs are wanted, because an empty set stands for all of them.
_NOTHING = "\0"
# The oldest version of torch that compiled steps are tested with.
_COMPILES_FROM = "2.13"


class TorchNetwork(BaseNetwork):
    """A network whose ops run in PyTorch.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        postprocessing: Postprocessing ops, which run on batches of numpy arrays after the other
            ops.
        slicers: Slicers, which cut a batch into minibatches and join their results.
        device: The device that ops run on: a `torch.device`, its name, or an index among the
            devices of the best kind. None for the device that the models were built on, or else
            `fastnet.util.get_device()`.
        keep_on_device: Whether models and optimizer state stay on the device while the network is
            not open. With False they are moved to the CPU when it is left, as in FastEstimator,
            which frees memory and copies all weights twice each time.
        returns: The device of a step's outputs: "cpu"; "device", where a step on a GPU is only
            queued when it returns; or None to return only the keys in `desired_output_keys`.
        compile: Whether to compile each step to one program, from the batch to the updated weights,
            or the `CompileOptions` for it. Steps that cannot be captured run eagerly, and `traces`
            has the reason.

    Raises:
        AssertionError: If an item is not an op, postprocessing op or slicer.
        ValueError: If only some models have mixed precision, a postprocessing op would drop or make
            batches, there is no such device, or models were built on different devices.
        TypeError: If `device` or `compile` has the wrong type.
        RuntimeError: If `compile` needs a later version of PyTorch.

    >>> import torch
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": torch.tensor([1.0, 2.0])})["y"]
    tensor([2., 4.])
    """

    device: torch.device
    _returns: str | None = "cpu"
    _keeps_on_device = True
    # of a network that was saved by an earlier version
    _options: CompileOptions | None = None

    def __init__(
        self,
        ops: Ops,
        postprocessing: NumpyOps = None,
        slicers: Slicers = None,
        device: Any = None,
        keep_on_device: bool = True,
        returns: Literal["cpu", "device"] | None = "cpu",
        compile: bool | CompileOptions = False,
    ) -> None:
        self._options = read_compile(compile)
        if self._options is not None:
            _check_version()
        if returns not in _RETURNS:
            raise ValueError(f"returns is 'cpu', 'device' or None, not {shorten(returns)}.")
        self._given_device = None if device is None else resolve_device(device)
        self._keeps_on_device = self._keeps_on_device and keep_on_device
        self._returns = returns
        if returns is None:
            self._wanted = frozenset([_NOTHING])
        super().__init__(
            target_type="torch",
            device=self._find_device(collect_models(list(filter(is_given, to_list(ops))))),
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )
        warn_of_untrained(self.ops, trainable_in)

    def _begin(self) -> None:
        super()._begin()
        self._records: Records | None = None

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """When steps were captured and why, or why not; the last of many."""
        return () if self._records is None else tuple(self._records.kept)

    def _move_in(self) -> None:
        try:
            device = self._find_device(self.models)
        except ValueError:  # another machine than the one that the network comes from
            device = self._choose_device()
        if device != self.device:
            self._use_device(device)

    def _on_device(self, device: Any) -> AbstractContextManager[None]:
        other = None if device is None else resolve_device(device)
        if other is None or other == self.device:
            return nullcontext()
        if self._context is not None:
            raise self._in_use()
        spread = [name_of(model) for model in self.models if engine_of(model) is not None]
        if spread:
            raise ValueError(
                f"transform is to run on {other}, but the models {spread} are spread over "
                f"devices, and were built on {self.device}. Leave its device out."
            )
        return self._moved_to(other)

    @contextmanager
    def _moved_to(self, device: torch.device) -> Iterator[None]:
        """Run on another device for a while, with the models there meanwhile."""
        own, plans = self.device, self._plans
        firsts = [(model, next(model.parameters(), None)) for model in self.models]
        devices = [(model, first.device) for model, first in firsts if first is not None]
        try:
            self._use_device(device)
            self._plans = PlanCache(self)
            yield
        finally:
            self._plans = plans
            self._use_device(own)
            for model, before in devices:
                model.to(before)
                move_optimizer(get_metadata(model, "current_optimizer"), before)

    def _use_device(self, device: torch.device) -> None:
        self.device = device
        for op in get_current_items(self.ops):
            self._build(op)

    def _choose_device(self) -> torch.device:
        return get_device()

    def _find_device(self, models: Sequence[Model]) -> torch.device:
        placed: dict[Any, list[Model]] = {}
        for model in models:
            device = get_metadata(model, "fe_device")
            if device is not None:
                placed.setdefault(device, []).append(model)
        if self._given_device is None:
            if len(placed) > 1:
                where = {str(device): list(map(name_of, own)) for device, own in placed.items()}
                raise ValueError(
                    f"The models of a network are on one device, but they were built on {where}. "
                    "Build them with one device, or pass the network's."
                )
            return next(iter(placed), None) or self._choose_device()
        for device, own in placed.items():
            spread = [name_of(model) for model in own if engine_of(model) is not None]
            if spread and device != self._given_device:
                raise ValueError(
                    f"The network's device is {self._given_device}, but the models {spread} are "
                    f"spread over processes, and were built on {device}. Leave the network's "
                    "device out, or build them there."
                )
        return self._given_device

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
        detach = NestMap(torch.Tensor, torch.Tensor.detach, when="requires_grad")
        if device.type == "cpu":
            return handling._replace(release=detach)
        # copies of a GPU are only queued here, and waited for once, at the step's end
        wait = stream_synchronizer(device)
        queue = wait is not None

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=queue)

        def release_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("cpu", non_blocking=queue)

        handling = handling._replace(move=NestMap(torch.Tensor, move))
        if self._returns == "device":
            return handling._replace(release=detach)
        release = NestMap(torch.Tensor, release_to_cpu)
        return handling._replace(release=release, wait=wait)

    _make_runner = make_runner


def _no_gradients(gradients: bool) -> Setting | None:
    if gradients:
        return None
    return torch.is_grad_enabled, set_grad_enabled, False


def _check_version() -> None:
    found = torch.__version__
    if found < _COMPILES_FROM:
        raise RuntimeError(
            f"compile needs PyTorch {_COMPILES_FROM} or later, but {found} is installed. Update it "
            "or leave out compile, which runs steps eagerly."
        )
