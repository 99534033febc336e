"""Running torch models, their training mode and weight penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from fastnet._nest import leaves_of, map_leaves
from fastnet._resolve import same_entries
from fastnet.backend import to_tensor
from fastnet.backend.model_metadata import name_of, set_metadata
from fastnet.backend.named_values import (
    ByName,
    check_arguments,
    find_layer,
    takes_several_arguments,
)
from fastnet.backend.torch._internals import SUBMODULES
from fastnet.backend.torch.wrappers import is_sharded, unwrap
from fastnet.types import State


def ends_linearly(model: Module) -> bool:
    while isinstance(model, torch.nn.Sequential) and len(model):
        model = model[-1]
    return isinstance(model, torch.nn.Linear)


def feed_forward(model: Module, *x: Any, training: bool = True) -> Any:
    model.train(mode=training)
    return model(*[to_tensor(value, "torch") for value in x])


class TrainingSwitch:
    """Puts a model into training or evaluation mode.

    `model.train()` visits all modules in Python. It is called once, and again only if the mode, the
    `training` flag of a module, or a module has changed since. `eval_layers` are names and classes
    of layers that stay in evaluation mode.
    """

    def __init__(self, model: Module, eval_layers: Sequence[str | type] = ()) -> None:
        self._model = model
        self._eval_names = {layer for layer in eval_layers if isinstance(layer, str)}
        self._eval_classes = tuple(layer for layer in eval_layers if not isinstance(layer, str))
        self._mode: bool | None = None
        # The flags and modules after the last call of `train`, as `same_entries` compares them.
        self._last_entries: tuple[list[Any], list[Any], int] = [], [], 0

    def __getstate__(self) -> dict[str, Any]:
        # A copied model has flags of its own.
        return {**vars(self), "_mode": None, "_last_entries": ([], [], 0)}

    def refresh(self) -> None:
        """Call `model.train()` in the next step."""
        self._mode = None

    def set(self, training: bool) -> None:
        """Set training mode, or evaluation mode."""
        if training is self._mode and same_entries(*self._last_entries):
            return
        self._mode = None
        self._model.train(training)
        if training and (self._eval_names or self._eval_classes):
            for name, module in unwrap(self._model).named_modules():
                if name in self._eval_names or isinstance(module, self._eval_classes):
                    module.eval()
        modules = list(self._model.modules())
        attributes = ("training", SUBMODULES)
        if all(name in vars(module) for module in modules for name in attributes):
            entries = [(vars(module), name) for module in modules for name in attributes]
            tables = [vars(module)[SUBMODULES] for module in modules]
            entries += [(table, key) for table in tables for key in table]
            values = [(table, key, table[key]) for table, key in entries]
            self._last_entries = values, tables, sum(map(len, tables))
            self._mode = training
        # A scripted module keeps its flag elsewhere, so `train` is called in every step.


class InputSpec:
    """The shapes and dtypes of a model's last input, as nests, and its device."""

    def __init__(self, data: Any) -> None:
        tensors = [leaf for leaf in leaves_of(data) if isinstance(leaf, Tensor)]
        self.device = tensors[0].device if tensors else None
        # Tensors of the device "meta" have no values.
        self._inputs = map_leaves(data, lambda leaf: _tensor_like(leaf, torch.empty_like, "meta"))
        self.shape = map_leaves(
            self._inputs, lambda tensor: None if tensor is None else tuple(tensor.shape)
        )
        self.dtype = map_leaves(
            self._inputs, lambda tensor: None if tensor is None else tensor.dtype
        )

    def get_dummy_input(self) -> Any:
        """Return a nest of tensors of ones with these shapes and dtypes."""
        return map_leaves(
            self._inputs, lambda tensor: _tensor_like(tensor, torch.ones_like, self.device)
        )


def _tensor_like(value: Any, make: Callable[..., Tensor], device: Any) -> Any:
    """Make a tensor of the shape and dtype of another; return None for anything else."""
    return make(value, device=device) if isinstance(value, Tensor) else None


def l2_regularization(model: Module, beta: float) -> Tensor:
    sums = [(parameter**2).sum() for parameter in model.parameters() if parameter.requires_grad]
    if any(map(is_sharded, sums)):
        # All sharded sums are reduced in one collective.
        sharded: Any = torch.stack([total for total in sums if is_sharded(total)]).sum()
        sums = [*(total for total in sums if not is_sharded(total)), sharded.full_tensor()]
    return beta * ((torch.stack(sums) / 2).sum() if sums else torch.zeros(()))


def add_l2_regularization(loss: Tensor, model: Module, beta: float) -> Tensor:
    return l2_regularization(model, beta) + loss


class TorchPass:
    """Runs a torch model for a ModelOp, by position or by name.

    `split` splits the result of the model into one value per output.
    """

    def __init__(self, op: Any, split: Callable[[Any], Iterable[Any]]) -> None:
        model: Module = op.model
        arguments, results = op.argument_names, op.result_names
        self._model = model
        self._split = split
        self._trainable: bool = op.trainable
        self._gradients: bool = op.gradients
        self._called: Callable[..., Any] = model
        self._by_name: ByName | None = None
        if arguments is not None or results is not None:
            title = f"ModelOp of '{name_of(model)}'"
            if arguments is not None:
                check_arguments(title, unwrap(model).forward, arguments)
            self._called = self._by_name = ByName(model, title, arguments, results)
        has_several = arguments is None and len(op.inputs) > 1
        self._unpacks_arguments = has_several and takes_several_arguments(unwrap(model).forward)
        layers = _layers_of(model)
        for layer in op.eval_layers:
            if isinstance(layer, str):
                find_layer(layers, layer, model, "eval_layers")
        self._switch = TrainingSwitch(model, op.eval_layers)
        is_data_parallel = isinstance(model, torch.nn.DataParallel)
        # All layers are found before any hook is registered: one of them may be missing.
        captured = [(find_layer(layers, layer, model), layer) for layer in op.intermediate_layers]
        self._captures = [_Capture(module, layer, is_data_parallel) for module, layer in captured]
        self._session_state: State | None = None
        self._epoch: Any = None

    def __call__(self, data: Any, state: State) -> Any:
        """Run the model; with intermediate layers return a list of its outputs and theirs."""
        if type(data) is not Tensor:
            data = to_tensor(data, "torch")
        if state is not self._session_state:
            self._begin_session(data, state)
        self._switch.set(self._trainable and state["mode"] == "train")
        if self._captures:
            return self._run_capturing(data)
        return self._run(data)

    def __getstate__(self) -> dict[str, Any]:
        # A session belongs to one network, and a copy is used in others.
        return {**vars(self), "_session_state": None}

    def close(self) -> None:
        """Remove the hooks on layers."""
        for capture in self._captures:
            capture.close()

    def _run(self, data: Any) -> Any:
        if self._gradients:
            return self._called(*data) if self._unpacks_arguments else self._called(data)
        with torch.no_grad():
            return self._called(*data) if self._unpacks_arguments else self._called(data)

    def _run_capturing(self, data: Any) -> list[Any]:
        try:
            for capture in self._captures:
                capture.start()
            outputs = self._split(self._run(data))
            return [*outputs, *[capture.result() for capture in self._captures]]
        finally:
            for capture in self._captures:
                capture.stop()

    def _begin_session(self, data: Any, state: State) -> None:
        """Prepare the model in the first step of a session."""
        self._switch.refresh()
        # Read by dict's own method: a compiled step refuses ops that read the epoch, but the
        # outputs of the model do not depend on this.
        epoch = dict.__getitem__(state, "epoch")
        if epoch != self._epoch:
            set_metadata(self._model, "fe_input_spec", InputSpec(data))
            self._epoch = epoch
        self._session_state = state


class _Capture:
    """Records the output of a layer in each thread between `start` and `stop`.

    DataParallel runs the layers of its replicas in threads of its own.
    """

    def __init__(self, layer: Module, name: str | int, is_data_parallel: bool) -> None:
        self._name = name
        self._is_data_parallel = is_data_parallel
        # By thread and device. A threading.local could not be copied with the model's hooks.
        self._outputs: dict[int, dict[Any, Any]] = {}
        self._hook = layer.register_forward_hook(self._take)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_outputs": {}}

    def _listener(self) -> int:
        return 0 if self._is_data_parallel else get_ident()

    def _take(self, layer: Module, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = self._outputs.get(self._listener())
        if outputs is not None:
            # DataParallel runs the layer once on each device.
            device = output.device if isinstance(output, Tensor) else None
            outputs[device] = output

    def start(self) -> None:
        self._outputs[self._listener()] = {}

    def stop(self) -> None:
        self._outputs.pop(self._listener(), None)

    def close(self) -> None:
        self._hook.remove()

    def result(self) -> Any:
        by_device = self._outputs[self._listener()]
        if not by_device:
            raise RuntimeError(
                f"The intermediate layer {self._name!r} did not run in the model's forward pass, "
                "so it has no output. Name a layer that runs on every pass."
            )
        devices = sorted(by_device, key=lambda device: getattr(device, "index", None) or 0)
        outputs = [by_device[device] for device in devices]
        if not all(isinstance(output, Tensor) for output in outputs):
            return outputs[0]
        if len(outputs) == 1:
            # `torch.vstack` would add a batch axis to an output without one, so add it here, too.
            return outputs[0] if outputs[0].dim() > 1 else outputs[0].reshape(1, -1)
        return torch.vstack([output.to(outputs[0].device) for output in outputs])


def _layers_of(model: Module) -> list[tuple[str, Module]]:
    layers = list(model.named_modules())
    if unwrap(model) is not model:
        # A wrapper is no layer, so that names and indices do not depend on the machine.
        layers = [(name.removeprefix("module."), layer) for name, layer in layers[1:]]
    return layers
