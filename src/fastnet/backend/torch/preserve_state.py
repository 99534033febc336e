"""Preserve the state of torch models and optimizers, and restore it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch

from fastnet.backend.model_metadata import every_optimizer_of
from fastnet.backend.torch.full_tensors import local_tensor
from fastnet.backend.torch.optimizer_state import has_custom_state_dict
from fastnet.backend.torch.random_state import load_random_state, random_state
from fastnet.backend.torch.wrappers import reshard, unwrap_all
from fastnet.types import Model


class PreservedState:
    """A copy, on the CPU, of the state that training changes.

    As a context manager it restores the state if the block raises an error.
    """

    def __init__(self, models: Iterable[Model]) -> None:
        models = list(models)
        for model in models:
            reshard(unwrap_all(model))
        self._modules = [
            (module, module.training) for model in models for module in model.modules()
        ]
        named = [
            (module, name, tensor)
            for module, _ in self._modules
            for name, tensor in _named_tensors(module)
        ]
        lazy: list[Any] = [tensor for _, _, tensor in named if _is_lazy(tensor)]
        self._lazy = [(tensor, type(tensor)) for tensor in lazy]
        self._tensors = [
            (module, name, tensor, _copy(tensor))
            for module, name, tensor in named
            if not _is_lazy(tensor)
        ]
        parameters = [tensor for _, _, tensor in named if isinstance(tensor, torch.nn.Parameter)]
        self._trainable = [(parameter, parameter.requires_grad) for parameter in parameters]
        self._gradients = [
            (tensor, tensor.grad, _copy(tensor.grad))
            for _, _, tensor, _ in self._tensors
            if isinstance(tensor, torch.nn.Parameter)
        ]
        default: Any = torch.nn.Module.get_extra_state
        self._extra_states = [
            (module, deepcopy(module.get_extra_state()))
            for module, _ in self._modules
            if type(module).get_extra_state is not default
        ]
        # Models may share an optimizer.
        optimizers = {
            id(optimizer): optimizer for model in models for optimizer in every_optimizer_of(model)
        }
        self._optimizers = list(map(_PreservedOptimizer, optimizers.values()))
        self._random = random_state()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.restore()

    def restore(self) -> None:
        """Restore the state."""
        with torch.no_grad():
            for module, training in self._modules:
                module.training = training
            for lazy, lazy_type in self._lazy:
                if type(lazy) is not lazy_type:
                    # Undo `materialize`.
                    lazy.data = torch.empty(0, device=lazy.device, dtype=lazy.dtype)
                    lazy.__class__ = lazy_type
            for parameter, flag in self._trainable:
                parameter.requires_grad_(flag)
            for module, name, tensor, value in self._tensors:
                _filled(tensor, value)
                if getattr(module, name, None) is not tensor:
                    setattr(module, name, tensor)
            for parameter, gradient, value in self._gradients:
                parameter.grad = _filled(gradient, value)
            for module, extra in self._extra_states:
                module.set_extra_state(extra)
            for optimizer in self._optimizers:
                optimizer.restore()
        load_random_state([], self._random)


class _PreservedOptimizer:
    """A copy of the state of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._objects = optimizer.state, [*optimizer.param_groups]
        # An optimizer may keep more than a dict for each parameter.
        self._state = {
            key: {name: (value, _copy(value)) for name, value in state.items()}
            if isinstance(state, dict)
            else (state, _copy(state))
            for key, state in optimizer.state.items()
        }
        self._groups = [
            {name: (value, _copy(value)) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        scaler = getattr(optimizer, "scaler", None)
        self._scaler = None if scaler is None else deepcopy(scaler.state_dict())
        self._custom_state: Any = None
        if has_custom_state_dict(optimizer):
            self._custom_state = deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        state, groups = self._objects
        # `Optimizer.load_state_dict` replaces both.
        self._optimizer.state, self._optimizer.param_groups = state, groups
        state.clear()
        for key, saved in self._state.items():
            state[key] = (
                {name: _filled(*pair) for name, pair in saved.items()}
                if isinstance(saved, dict)
                else _filled(*saved)
            )
        for group, settings in zip(groups, self._groups, strict=True):
            for name in group.keys() - settings.keys() - {"params"}:
                del group[name]
            group.update({name: _filled(*pair) for name, pair in settings.items()})
        if self._custom_state is not None:
            self._optimizer.load_state_dict(deepcopy(self._custom_state))
        if self._scaler:
            self._optimizer.scaler.load_state_dict(self._scaler)


def require_variables(models: Iterable[Model], problem: str = "which cannot be undone") -> None:
    """Raise a ValueError if the first pass of a model would create parameters."""
    for module in (module for model in models for module in model.modules()):
        if any(map(torch.nn.parameter.is_lazy, module.parameters(recurse=False))):
            raise ValueError(
                f"A {type(module).__name__} creates its parameters in its first forward pass, "
                f"{problem}. Run the model once beforehand."
            )


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Iterate over the parameters and buffers of a module itself, also those that are None."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
    for name in dir(module):
        is_registered = name not in vars(module) and not hasattr(type(module), name)
        if is_registered and getattr(module, name, 0) is None:
            yield name, None


def _is_lazy(tensor: Any) -> bool:
    return torch.nn.parameter.is_lazy(tensor)


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return deepcopy(value)
    return local_tensor(value).detach().to("cpu", copy=True)


def _filled(value: Any, copy: Any) -> Any:
    """Return the original tensor with its old values; a copy of anything else."""
    if not isinstance(value, torch.Tensor):
        return deepcopy(copy)
    local_tensor(value).detach().copy_(copy)
    return value
