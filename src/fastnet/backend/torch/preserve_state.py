"""Saves the state of torch models and their optimizers in memory, to restore it later."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch

__all__ = ["PreservedState"]


class PreservedState:
    """Everything that training changes, at the time of the call.

    Of models these are parameters, gradients, buffers and training flags; of optimizers their
    state, groups and scalers. A lazy parameter raises ValueError, because its initialization could
    not be undone.
    """

    def __init__(self, models: Iterable[Any], optimizers: Iterable[Any]) -> None:
        self._modules = [module for model in models for module in model.modules()]
        for module in self._modules:
            if any(map(torch.nn.parameter.is_lazy, module.parameters(recurse=False))):
                raise ValueError(
                    f"A {type(module).__name__} creates its parameters in its first forward pass, "
                    "which cannot be undone. Run the model once beforehand."
                )
        self._flags = [module.training for module in self._modules]
        self._tensors = [
            (module, name, tensor, _copy(tensor))
            for module in self._modules
            for name, tensor in _named_tensors(module)
        ]
        self._empty = [
            (module, name) for module in self._modules for name in _empty_attributes(module)
        ]
        self._gradients = [
            (tensor, tensor.grad, _copy(tensor.grad))
            for _, _, tensor, _ in self._tensors
            if isinstance(tensor, torch.nn.Parameter)
        ]
        self._optimizers = [_Optimizer(one) for one in optimizers]
        self._generator = torch.get_rng_state()
        self._on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Restore all of it."""
        with torch.no_grad():
            for module, flag in zip(self._modules, self._flags, strict=True):
                module.training = flag
            for module, name, tensor, value in self._tensors:
                _filled(tensor, value)
                if getattr(module, name, None) is not tensor:
                    setattr(module, name, tensor)
            for module, name in self._empty:
                if getattr(module, name, None) is not None:
                    setattr(module, name, None)
            for parameter, gradient, value in self._gradients:
                parameter.grad = _filled(gradient, value)
            for optimizer in self._optimizers:
                optimizer.restore()
        torch.set_rng_state(self._generator)
        if self._on_cuda:
            torch.cuda.set_rng_state_all(self._on_cuda)


class _Optimizer:
    """The state of an optimizer at the time of the call."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._state = {
            parameter: {name: (value, _copy(value)) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self._groups = [
            {name: (value, _copy(value)) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        scaler = getattr(optimizer, "scaler", None)
        self._scaler = None if scaler is None else deepcopy(scaler.state_dict())

    def restore(self) -> None:
        state = self._optimizer.state
        state.clear()
        for parameter, kept in self._state.items():
            state[parameter] = {name: _filled(*pair) for name, pair in kept.items()}
        for group, settings in zip(self._optimizer.param_groups, self._groups, strict=True):
            for name in group.keys() - settings.keys() - {"params"}:
                del group[name]
            group.update({name: _filled(*pair) for name, pair in settings.items()})
        if self._scaler is not None:
            self._optimizer.scaler.load_state_dict(self._scaler)


def _named_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """List the parameters and buffers that a module itself has, by name."""
    return [
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ]


def _empty_attributes(module: torch.nn.Module) -> list[str]:
    """List the parameters, buffers and submodules that are registered as None."""
    own = [name for name in dir(module) if name not in vars(module)]
    return [
        name for name in own if not hasattr(type(module), name) and getattr(module, name) is None
    ]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else deepcopy(value)


def _filled(value: Any, copy: Any) -> Any:
    """Fill the original tensor with its copied values; return other values as copies."""
    if not isinstance(value, torch.Tensor):
        return deepcopy(copy)
    value.detach().copy_(copy)
    return value
