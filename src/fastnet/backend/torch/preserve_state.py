"""Preserve the state of torch models and optimizers, and restore it."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch

from fastnet.backend.torch._internals import places_of

__all__ = ["PreservedState"]


class PreservedState:
    """A copy of the state that training changes.

    Args:
        models: The models: of each the parameters with their gradients, the buffers, and whether
            its modules train.
        optimizers: The optimizers: of each the state, the settings of its groups, and its scaler.

    Raises:
        ValueError: If a parameter has no value yet, which could not be taken back.
    """

    def __init__(self, models: Iterable[Any], optimizers: Iterable[Any]) -> None:
        self._modules = [module for model in models for module in model.modules()]
        for module in self._modules:
            if any(map(_is_to_come, module.parameters(recurse=False))):
                raise ValueError(
                    f"A {type(module).__name__} creates its parameters in its first forward pass, "
                    "which cannot be undone. Run the model once beforehand."
                )
        self._flags = [module.training for module in self._modules]
        self._tensors = [
            (module, name, tensor, _copy(tensor))
            for module in self._modules
            for name, tensor in places_of(module)
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
        """Restore the state."""
        with torch.no_grad():
            for module, flag in zip(self._modules, self._flags, strict=True):
                module.training = flag
            for module, name, tensor, value in self._tensors:
                _filled(tensor, value)
                if getattr(module, name, None) is not tensor:
                    setattr(module, name, tensor)
            for parameter, gradient, value in self._gradients:
                parameter.grad = _filled(gradient, value)
            for optimizer in self._optimizers:
                optimizer.restore()
        torch.set_rng_state(self._generator)
        if self._on_cuda:
            torch.cuda.set_rng_state_all(self._on_cuda)


class _Optimizer:
    """What an optimizer holds, as it is now."""

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


def _is_to_come(parameter: Any) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else deepcopy(value)


def _filled(value: Any, copy: Any) -> Any:
    """Return the very tensor that was there, with what it held; of anything else the copy."""
    if not isinstance(value, torch.Tensor):
        return deepcopy(copy)
    value.detach().copy_(copy)
    return value
