"""Networks of torch models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from fastnet._execute import InputConversion
from fastnet._nest import NestMap
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.torch._internals import find_backend, set_grad_enabled
from fastnet.backend.torch.optimizer_step import clear_model_gradients
from fastnet.backend.torch.parameters import named_trainable_parameters
from fastnet.backend.torch.tensors import ARRAYS, FOREIGN
from fastnet.backend.torch.watched_tensors import WatchedTensor, changed_tensors, tensors_in
from fastnet.backend.torch.wrappers import parallel_type
from fastnet.errors import shorten
from fastnet.network.base import BaseNetwork
from fastnet.network.compile_options import CompileOptions, read_compile
from fastnet.network.dynamic_axes import Dynamic, DynamicAxes, read_keys
from fastnet.network.held_state import values_in
from fastnet.network.plan_cache import ExecutionPlan, Setting, StepOptions
from fastnet.network.program_set import ProgramSets
from fastnet.network.torch.parallel import require_plain_models
from fastnet.network.torch.session import TorchSession, move_optimizer
from fastnet.network.trace_records import Records, TraceRecord
from fastnet.network.validation import collect_models
from fastnet.schedule import get_current_items
from fastnet.types import Model, NumpyOps, Ops, Slicers, is_given
from fastnet.util import get_device, to_list
from fastnet.util.devices import resolve_device, stream_synchronizer
from fastnet.util.warnings import warn

if TYPE_CHECKING:
    from fastnet.network.torch.compiled.program_set import TorchProgramSet

_RETURNS = ("cpu", "device", None)
# The oldest version of torch that compiled steps are tested with.
_COMPILES_FROM = "2.13"


class TorchNetwork(BaseNetwork):
    """A network whose ops run in PyTorch.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        postprocessing: Postprocessing ops, which run on batches of numpy arrays after the other
            ops.
        slicers: Slicers, which split a batch into minibatches and merge their results.
        device: The device that ops run on: a `torch.device`, its name, or an index among the
            devices of the best type. None for the device that the models were built on, or else
            `fastnet.util.get_device()`.
        keep_on_device: Whether models and optimizer state stay on the device while the network is
            not open. With False they are moved to the CPU when it is left, as in FastEstimator,
            which frees memory and copies all weights twice each time.
        returns: The device of a step's outputs: "cpu"; "device", where a step may return before
            the GPU has finished; or None to return only the keys in `desired_output_keys`.
        dynamic: Which lengths may vary within one compiled program: see `Network`.
        compile: Whether to compile each step, from the batch to the updated weights, or the
            `CompileOptions` for it. Steps that cannot be captured run eagerly, and `traces`
            gives the reason.

    Raises:
        AssertionError: If an item is not an op, postprocessing op or slicer.
        ValueError: If only some models have mixed precision, a postprocessing op would drop or make
            batches, the device is not available, models were built on different devices, or
            `compile` names an unknown backend.
        TypeError: If `device`, `dynamic` or `compile` has the wrong type.
        RuntimeError: If `compile` needs a later version of PyTorch.

    >>> import torch
    >>> from fastnet.op.tensorop import LambdaOp
    >>> network = TorchNetwork([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": torch.tensor([1.0, 2.0])})["y"]
    tensor([2., 4.])
    """

    device: torch.device
    _session_type = TorchSession
    _returns: str | None = "cpu"
    _keeps_on_device = True

    def __init__(
        self,
        ops: Ops,
        postprocessing: NumpyOps = None,
        slicers: Slicers = None,
        device: Any = None,
        keep_on_device: bool = True,
        returns: Literal["cpu", "device"] | None = "cpu",
        dynamic: Dynamic = None,
        compile: bool | CompileOptions = False,
    ) -> None:
        self._dynamic_axes = DynamicAxes(dynamic)
        self._compile_options = read_compile(compile)
        if self._compile_options is not None:
            _check_compile(self._compile_options)
        if returns not in _RETURNS:
            raise ValueError(f"returns is 'cpu', 'device' or None, not {shorten(returns)}.")
        self._given_device = None if device is None else resolve_device(device)
        self._keeps_on_device = self._keeps_on_device and keep_on_device
        self._returns = returns
        self._returns_all = returns is not None
        super().__init__(
            target_type="torch",
            device=self._find_device(collect_models(list(filter(is_given, to_list(ops))))),
            ops=ops,
            postprocessing=postprocessing,
            slicers=slicers,
        )
        self._watch_tensors()
        self._dynamic_axes.warn_of_unread_keys(read_keys(self.ops))

    def _init_state(self) -> None:
        super()._init_state()
        # Tensors that are not saved, with their versions when they were first seen, by path.
        self._watched: dict[str, WatchedTensor] = {}
        self._records = Records("eagerly")
        self._program_sets: ProgramSets[TorchProgramSet] = ProgramSets()

    def _trainable_in(self, value: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return named_trainable_parameters(value)

    def _watch_tensors(self) -> None:
        self._watched = tensors_in(dict(values_in(self)))

    def _warn_of_unsaved_state(self) -> None:
        values = dict(values_in(self))
        changed = changed_tensors(self._watched, values)
        # Tensors made by the first steps, such as hidden states, are watched from here on.
        self._watched = {**tensors_in(values), **self._watched}
        if changed:
            warn(
                f"The tensors {shorten(changed)} have changed during training, and are not saved. "
                "Register them as buffers of a model, or give the op a state_dict and a "
                "load_state_dict."
            )

    @property
    def traces(self) -> tuple[TraceRecord, ...]:
        """Records of captures and fallbacks, with their reasons; only the latest are kept."""
        return tuple(self._records.latest)

    def retrace(self) -> None:
        """Discard all plans and compiled programs; see `BaseNetwork.retrace`."""
        super().retrace()
        self._program_sets.clear()

    def _update_device(self) -> None:
        try:
            device = self._find_device(self.models)
        except ValueError:  # The network was pickled on a machine with other devices.
            device = get_device()
        if device != self.device:
            self._use_device(device)

    def _on_device(self, device: Any) -> AbstractContextManager[None]:
        target = None if device is None else resolve_device(device)
        if target is None or target == self.device:
            return nullcontext()
        if self._session is not None:
            raise self._in_use()
        wrapped = [name_of(model) for model in self.models if parallel_type(model) is not None]
        if wrapped:
            raise ValueError(
                f"transform got device={str(target)!r}, but the models {wrapped} are distributed "
                f"and were built on {self.device}. Leave out the device."
            )
        return self._moved_to(target)

    @contextmanager
    def _moved_to(self, device: torch.device) -> Iterator[None]:
        """Run on another device, with the models moved there temporarily."""
        device_before, plan_cache = self.device, self._plan_cache
        firsts = [(model, next(model.parameters(), None)) for model in self.models]
        devices = [(model, first.device) for model, first in firsts if first is not None]
        try:
            self._use_device(device)
            self._plan_cache = self._make_plan_cache()
            yield
        finally:
            self._plan_cache = plan_cache
            self._use_device(device_before)
            for model, model_device in devices:
                model.to(model_device)
                move_optimizer(get_metadata(model, "current_optimizer"), model_device)

    def _use_device(self, device: torch.device) -> None:
        self.device = device
        for op in get_current_items(self.ops):
            self._build_op(op)

    def _find_device(self, models: Sequence[Model]) -> torch.device:
        built_on: dict[Any, list[Model]] = {}
        for model in models:
            device = get_metadata(model, "fe_device")
            if device is not None:
                built_on.setdefault(device, []).append(model)
        if self._given_device is None:
            if len(built_on) > 1:
                names = {
                    str(device): list(map(name_of, device_models))
                    for device, device_models in built_on.items()
                }
                raise ValueError(
                    f"All models of a network must be on one device, but were built on {names}. "
                    "Build them on one device, or pass `device` to the network."
                )
            return next(iter(built_on), None) or get_device()
        for device, device_models in built_on.items():
            wrapped = [
                name_of(model) for model in device_models if parallel_type(model) is not None
            ]
            if wrapped and device != self._given_device:
                raise ValueError(
                    f"The network's device is {self._given_device}, but the models {wrapped} are "
                    f"distributed and were built on {device}. Leave out the network's device, or "
                    "build them there."
                )
        return self._given_device

    def _check_ops(self, plan: ExecutionPlan) -> None:
        if plan.takes_gradients:
            require_plain_models(plan)

    def _step_options(self) -> StepOptions:
        step_options = StepOptions(
            conversion=InputConversion(torch.Tensor, FOREIGN, ARRAYS),
            grad_mode=_no_gradients,
            clear_gradients=clear_model_gradients,
            defers_last_updates=True,
        )
        device = self.device
        detach = NestMap(torch.Tensor, torch.Tensor.detach, when="requires_grad")
        if device.type == "cpu":
            return step_options._replace(detach=detach)
        # Copies from a GPU are asynchronous, and synchronized once at the end of the step.
        synchronize = stream_synchronizer(device)
        non_blocking = synchronize is not None

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        def release_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("cpu", non_blocking=non_blocking)

        step_options = step_options._replace(to_device=NestMap(torch.Tensor, move))
        if self._returns == "device":
            return step_options._replace(detach=detach)
        release = NestMap(torch.Tensor, release_to_cpu)
        return step_options._replace(detach=release, synchronize=synchronize)


def _no_gradients(gradients: bool) -> Setting | None:
    if gradients:
        return None
    return torch.is_grad_enabled, set_grad_enabled, False


def _check_compile(options: CompileOptions) -> None:
    """Check the version of PyTorch and the name of the backend."""
    version = torch.__version__
    if version < _COMPILES_FROM:
        raise RuntimeError(
            f"compile needs PyTorch {_COMPILES_FROM} or later, but {version} is installed. Update "
            "it or leave out compile, which runs steps eagerly."
        )
    if isinstance(options.backend, str) and options.backend not in ("eager", "inductor"):
        find_backend(options.backend)
