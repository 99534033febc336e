"""A forward pass through a torch model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any

import torch

from fastnet.backend import to_tensor
from fastnet.backend.facts import name_of, put_fact
from fastnet.backend.torch.models import InputSpec, TrainingSwitch
from fastnet.backend.torch.names import unwrap
from fastnet.errors import MissingKeyError, nearest_name
from fastnet.op.tensorop.model.naming import ByName, check_arguments
from fastnet.types import State


class TorchPass:
    """What a ModelOp does with a torch model.

    Args:
        model: The model.
        inputs: The keys of the op's inputs.
        trainable: Whether the model is in training mode while the step's mode is "train".
        gradients: Whether gradients flow through it.
        layers: The layers whose outputs are wanted too, by name or place.
        split: With layers: takes what the model returns apart, a value for each of its own outputs.
        arguments: The names of the arguments that the inputs are, None to give them by place.
        results: The names of the values to take of what the model returns, None to take all.
        eval_layers: Names and classes of layers that act as in evaluation in any mode.

    Raises:
        KeyError: If no layer has a name.
        IndexError: If no layer has a place.
        ValueError: If the model takes no arguments of such names, or needs others.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[str],
        trainable: bool,
        gradients: bool,
        layers: Sequence[str | int],
        split: Callable[[Any], Iterable[Any]],
        arguments: Sequence[str] | None = None,
        results: Sequence[str] | None = None,
        eval_layers: Sequence[str | type] = (),
    ) -> None:
        self._model = model
        self._split = split
        self._trainable = trainable
        self._gradients = gradients
        self._called: Callable[..., Any] = model
        self._by_name: ByName | None = None
        if arguments is not None or results is not None:
            title = f"ModelOp of '{name_of(model)}'"
            if arguments is not None:
                check_arguments(title, unwrap(model).forward, arguments)
            self._called = self._by_name = ByName(model, title, arguments, results)
        taken = inspect.signature(unwrap(model).forward).parameters
        self._spread = arguments is None and len(inputs) > 1 and len(taken) > 1
        for layer in eval_layers:
            if isinstance(layer, str):
                _find_layer(model, layer, "eval_layers")
        self._switch = TrainingSwitch(model, eval_layers)
        # the replicas of such a model run in threads of its own
        spread = isinstance(model, torch.nn.DataParallel)
        # All layers are found before any hook is registered: one of them may be missing.
        found = [(_find_layer(model, layer), layer) for layer in layers]
        self._captures = [_Capture(module, layer, spread) for module, layer in found]
        self._opened: State | None = None
        self._epoch: Any = None

    def __call__(self, data: Any, state: State) -> Any:
        """Run the model.

        Args:
            data: Its input, or a list of inputs; numpy arrays become tensors.
            state: The step's context.

        Returns:
            What the model returns; with layers a list of that and their outputs.
        """
        if type(data) is not torch.Tensor:
            data = to_tensor(data, "torch")
        if state is not self._opened:
            self._open(data, state)
        self._switch.set(self._trainable and state["mode"] == "train")
        if self._captures:
            return self._run_capturing(data)
        return self._run(data)

    def __getstate__(self) -> dict[str, Any]:
        # an opening is of one network, which has its own
        return {**vars(self), "_opened": None}

    def close(self) -> None:
        """Listen to the layers no more."""
        for capture in self._captures:
            capture.close()

    def _run(self, data: Any) -> Any:
        if self._gradients:
            return self._called(*data) if self._spread else self._called(data)
        with torch.no_grad():
            return self._called(*data) if self._spread else self._called(data)

    def _run_capturing(self, data: Any) -> list[Any]:
        try:
            for capture in self._captures:
                capture.start()
            own = self._split(self._run(data))
            return [*own, *[capture.result() for capture in self._captures]]
        finally:
            for capture in self._captures:
                capture.stop()

    def _open(self, data: Any, state: State) -> None:
        """Do what is needed once each time that a network is opened, at the first step."""
        self._switch.refresh()
        if state["epoch"] != self._epoch:
            put_fact(self._model, "fe_input_spec", InputSpec(data))
            self._epoch = state["epoch"]
        # last: what comes in between is done anew
        self._opened = state


class _Capture:
    """Takes down what a layer returns, for each thread that listens, as long as it does.

    Args:
        layer: The layer.
        name: What it was asked for by, for error texts.
        spread: Whether the model runs its layers in other threads than the one that listens.
    """

    def __init__(self, layer: torch.nn.Module, name: str | int, spread: bool) -> None:
        self._name = name
        self._spread = spread
        # by thread, and there by device; no threading.local, as a model is copied with its hooks
        self._outputs: dict[int, dict[Any, Any]] = {}
        self._hook = layer.register_forward_hook(self._take)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_outputs": {}}

    def _listener(self) -> int:
        return 0 if self._spread else get_ident()

    def _take(self, layer: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = self._outputs.get(self._listener())
        if outputs is not None:
            # a model spread over devices runs its layer once on each
            device = output.device if isinstance(output, torch.Tensor) else None
            outputs[device] = output

    def start(self) -> None:
        self._outputs[self._listener()] = {}

    def stop(self) -> None:
        self._outputs.pop(self._listener(), None)

    def close(self) -> None:
        self._hook.remove()

    def result(self) -> Any:
        found = self._outputs[self._listener()]
        if not found:
            raise RuntimeError(
                f"The intermediate layer {self._name!r} did not run in the model's forward pass, "
                "so it has no output. Name a layer that runs on every pass."
            )
        outputs = [
            output
            for _, output in sorted(
                found.items(), key=lambda item: (item[0].index or 0) if item[0] else 0
            )
        ]
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            return outputs[0]
        if len(outputs) == 1:
            # as stacking would: a layer without a batch axis gets one
            return outputs[0] if outputs[0].dim() > 1 else outputs[0].reshape(1, -1)
        return torch.vstack([output.to(outputs[0].device) for output in outputs])


def _find_layer(
    model: torch.nn.Module, layer: str | int, setting: str = "intermediate_layers"
) -> torch.nn.Module:
    modules: list[tuple[str, torch.nn.Module]] = list(model.named_modules())
    if unwrap(model) is not model:
        # the wrapper is nobody's layer, so that a program need not change with the machine
        modules = [(name.removeprefix("module."), module) for name, module in modules[1:]]
    if isinstance(layer, int):
        if not -len(modules) <= layer < len(modules):
            raise IndexError(
                f"{setting} asks for layer {layer} of {type(model).__name__}, which has "
                f"{len(modules)}. list(model.named_modules()) shows them."
            )
        return modules[layer][1]
    by_name = dict(modules)
    if layer not in by_name:
        near = nearest_name(layer, by_name)
        raise MissingKeyError(
            f"{setting} asks for the layer '{layer}' of {type(model).__name__}, which "
            f"has none of this name.{f' Did you mean {near!r}?' if near else ''} "
            "list(model.named_modules()) shows them."
        )
    return by_name[layer]
