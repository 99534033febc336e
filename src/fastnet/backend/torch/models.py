"""Running torch models, their training mode and weight penalty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastnet._watch import Contents
from fastnet.backend import to_tensor
from fastnet.backend.torch._internals import SUBMODULES
from fastnet.backend.torch.engines import is_sharded
from fastnet.backend.torch.names import unwrap
from fastnet.types import State

__all__ = [
    "InputSpec",
    "SquaredWeights",
    "TrainingSwitch",
    "feed_forward",
    "l2_regularization",
]


def feed_forward(model: torch.nn.Module, *x: Any, training: bool = True) -> Any:
    """Run a model in training or evaluation mode; numpy arrays are converted to tensors."""
    model.train(mode=training)
    return model(*[to_tensor(value, "torch") for value in x])


class TrainingSwitch:
    """Puts a model into training or evaluation mode.

    `model.train()` visits all modules in Python. It is called once, and again only if the mode, the
    `training` flag of a module, or a module has changed since. `eval_layers` are names and classes
    of layers that stay in evaluation mode.
    """

    def __init__(self, model: torch.nn.Module, eval_layers: Sequence[str | type] = ()) -> None:
        self._model = model
        self._kept_names = {one for one in eval_layers if isinstance(one, str)}
        self._kept_classes = tuple(one for one in eval_layers if not isinstance(one, str))
        self._mode: bool | None = None
        # Tells whether flags and modules are those that `train` left.
        self._are_still: Callable[[], bool] = Contents([], []).are_still

    def __getstate__(self) -> dict[str, Any]:
        # A copied model has flags of its own.
        return {**vars(self), "_mode": None, "_are_still": None}

    def refresh(self) -> None:
        """Call `model.train()` in the next step."""
        self._mode = None

    def set(self, training: bool) -> None:
        """Set training mode, or evaluation mode."""
        if training is self._mode and self._are_still():
            return
        self._mode = None
        self._model.train(training)
        if training and (self._kept_names or self._kept_classes):
            self._keep()
        modules = list(self._model.modules())
        attributes = ("training", SUBMODULES)
        if all(name in vars(module) for module in modules for name in attributes):
            entries = [(vars(module), name) for module in modules for name in attributes]
            tables = [vars(module)[SUBMODULES] for module in modules]
            self._are_still = Contents(entries, tables, owners=modules).are_still
            self._mode = training
        # A scripted module keeps its flag elsewhere, so `train` is called in every step.

    def _keep(self) -> None:
        """Put the layers that stay in evaluation mode into it."""
        model = unwrap(self._model)
        for name, module in model.named_modules():
            if name in self._kept_names or isinstance(module, self._kept_classes):
                module.eval()


class InputSpec:
    """The shapes and dtypes of a model's last input, as nests, and its device."""

    def __init__(self, data: Any) -> None:
        self.shape = _map(data, lambda tensor: tuple(tensor.shape))
        self.dtype = _map(data, lambda tensor: tensor.dtype)
        self.device = _first_device(data)

    def get_dummy_input(self) -> Any:
        """Return a nest of tensors of ones with these shapes and dtypes."""
        return _dummy(self.shape, self.dtype, self.device)


def l2_regularization(model: torch.nn.Module, beta: float) -> torch.Tensor:
    """Return half the sum of a model's squared trainable weights, times `beta`."""
    squares = [(one**2).sum() / 2 for one in model.parameters() if one.requires_grad]
    if any(map(is_sharded, squares)):
        # All sharded sums are reduced in one collective.
        sharded: Any = torch.stack([one for one in squares if is_sharded(one)]).sum()
        squares = [*(one for one in squares if not is_sharded(one)), sharded.full_tensor()]
    return beta * (torch.stack(squares).sum() if squares else torch.zeros(()))


class SquaredWeights:
    """Adds `l2_regularization` of a model to a loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, loss: torch.Tensor, beta: float, state: State) -> torch.Tensor:
        """Return the sum; `state` is for TensorFlow."""
        return l2_regularization(self._model, beta) + loss


def _map(data: Any, fn: Callable[[Any], Any]) -> Any:
    if isinstance(data, dict):
        return {key: _map(value, fn) for key, value in data.items()}
    if isinstance(data, (list, tuple, set)):
        return [_map(value, fn) for value in data]
    return fn(data) if hasattr(data, "shape") and hasattr(data, "dtype") else None


def _dummy(shape: Any, dtype: Any, device: torch.device | None) -> Any:
    if isinstance(dtype, dict):
        return {key: _dummy(shape[key], dtype[key], device) for key in dtype}
    if isinstance(dtype, list):
        return [_dummy(*both, device) for both in zip(shape, dtype, strict=True)]
    return None if dtype is None else torch.ones(shape, dtype=dtype, device=device)


def _first_device(data: Any) -> torch.device | None:
    if isinstance(data, torch.Tensor):
        return data.device
    parts = data.values() if isinstance(data, dict) else data
    if isinstance(data, (dict, list, tuple, set)):
        for part in parts:
            device = _first_device(part)
            if device is not None:
                return device
    return None
