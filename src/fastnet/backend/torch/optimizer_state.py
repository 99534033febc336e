"""The state of torch optimizers and their gradient scalers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from fastnet._nest import map_leaves
from fastnet.backend.model_metadata import known_models, name_of
from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.parameters import optimizer_parameters
from fastnet.backend.torch.weights import without_wrappers
from fastnet.backend.torch.wrappers import reshard, unwrap_all
from fastnet.util.warnings import is_library

_NUMBERS = (bool, int, float, type(None))
# The keys of the `state_dict` of torch's optimizers.
_PARTS = frozenset(("state", "param_groups"))
# Optimizers of torch whose state has other shapes than their parameters.
_OTHER_SHAPES = (torch.optim.Adafactor, torch.optim.LBFGS)


def optimizer_state(optimizer: Any, model: torch.nn.Module) -> dict[str, Any]:
    """Return the `state_dict` of a model's optimizer, with its class and its scaler's state.

    Entries of its `state_dict` that torch's optimizers do not have are under "own".
    """
    kind, parameters = type(optimizer).__name__, optimizer_parameters(optimizer)
    dtypes = [str(parameter.dtype) for parameter in parameters]
    shapes = [
        tuple(parameter.shape) if parameter in optimizer.state else None for parameter in parameters
    ]
    names = names_of(parameters, model)
    facts = {"optimizer": kind, "names": names, "dtypes": dtypes, "shapes": shapes}
    saved = optimizer.state_dict()
    parts = _PARTS if saved.keys() >= _PARTS else frozenset[str]()
    state = {**{key: saved[key] for key in saved if key in parts}, **facts}
    if custom_entries := {key: value for key, value in saved.items() if key not in parts}:
        state["own"] = custom_entries
    for key, values in state.get("state", {}).items():
        if isinstance(key, int) and not isinstance(values, dict):
            raise TypeError(
                f"The optimizer {kind} keeps a {type(values).__name__} as the state of parameter "
                f"{key}, which cannot be saved. Let it keep a dict of values by name."
            )
    scaler = getattr(optimizer, "scaler", None)
    return state if scaler is None else {**state, "scaler": scaler.state_dict()}


def load_optimizer_state(optimizer: Any, model: torch.nn.Module, state: Any, source: str) -> None:
    """Restore a model's optimizer and its scaler; raise a ValueError if the state does not fit."""
    try:
        if "own" in state and not state.keys() >= _PARTS:
            _require_kind(state, optimizer)
            _require_names(state, names_of(optimizer_parameters(optimizer), model))
            optimizer.load_state_dict(state["own"])
        else:
            _load_groups(optimizer, model, state)
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None and state.get("scaler"):
            scaler.load_state_dict(state["scaler"])
    except Exception as error:  # A file may hold anything under these names.
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{source} does not fit the optimizer, {type(optimizer).__name__}: {reason}. Use the "
            "optimizer that was saved, or leave its state out."
        ) from error


def has_custom_state_dict(optimizer: Any) -> bool:
    """Return whether a class outside of the libraries defines the optimizer's `state_dict`."""
    kind, default = type(optimizer), torch.optim.Optimizer.state_dict
    return not is_library(kind.__module__) and getattr(kind, "state_dict", default) is not default


def _load_groups(optimizer: Any, model: torch.nn.Module, state: Any) -> None:
    """Restore an optimizer's groups, the state of its parameters, and its custom entries."""
    groups = _fitting_groups(state, optimizer)
    settings = [dict(group) for group in optimizer.param_groups]
    keys = [key for group in groups for key in group["params"]]
    parameters = dict(zip(keys, optimizer_parameters(optimizer), strict=True))
    _require_names(state, names_of(parameters.values(), model))
    _require_shapes(state, parameters, optimizer)
    # State under another key than the index of a parameter is of the optimizer as a whole.
    values = {
        key: _fitting_values(value, parameters[key], optimizer) if isinstance(key, int) else value
        for key, value in state["state"].items()
    }
    # A file of torch has everything side by side.
    state_dict = {**state.get("own", state), "param_groups": groups}
    if state.get("dtypes") == [str(parameter.dtype) for parameter in parameters.values()]:
        _load_without_casting(optimizer, state_dict, values, parameters)
    else:
        optimizer.load_state_dict({**state_dict, "state": values})
    _fill_settings(optimizer, settings)


@torch.no_grad()
def _fill_settings(optimizer: Any, before: list[dict[str, Any]]) -> None:
    """Write settings that are tensors into the tensors from before, which groups may share."""
    for group, settings in zip(optimizer.param_groups, before, strict=True):
        for name, value in group.items():
            tensor = settings.get(name)
            if not (isinstance(value, torch.Tensor) and isinstance(tensor, torch.Tensor)):
                continue
            if (value.shape, value.dtype) == (tensor.shape, tensor.dtype):
                group[name] = tensor.copy_(value)


def _require_kind(state: Any, optimizer: Any) -> None:
    kind = state.get("optimizer", type(optimizer).__name__)
    if kind != type(optimizer).__name__:
        raise ValueError(f"it was saved by {kind}")


def _fitting_groups(state: Any, optimizer: Any) -> list[dict[str, Any]]:
    """Return the groups of a state, after checking that they are of an optimizer of this kind."""
    _require_kind(state, optimizer)
    saved_groups, groups = state["param_groups"], optimizer.param_groups
    saved_sizes, sizes = _group_sizes(saved_groups), _group_sizes(groups)
    if saved_sizes != sizes:
        raise ValueError(
            f"its groups have {saved_sizes} parameters, where the model's have {sizes}"
        )
    saved_names, names = _setting_names(saved_groups), _setting_names(groups)
    # Another version of torch may have more settings or fewer, but not both.
    if saved_names - names and names - saved_names:
        raise ValueError(
            f"its settings are {sorted(saved_names)}, where the model's are {sorted(names)}"
        )
    return [{**group, **saved} for group, saved in zip(groups, saved_groups, strict=True)]


def _group_sizes(groups: Iterable[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _setting_names(groups: Iterable[dict[str, Any]]) -> set[str]:
    return {name for group in groups for name in group}


def names_of(parameters: Iterable[torch.nn.Parameter], model: torch.nn.Module) -> list[str]:
    """Return the name of each parameter in a model, or with the name of another model before it."""
    parameters = list(parameters)
    names: dict[Any, str] = {}
    for owner in [model, *known_models()]:
        if all(parameter in names for parameter in parameters):
            break
        if isinstance(owner, torch.nn.Module):
            reshard(unwrap_all(owner))
            prefix = "" if owner is model else f"{name_of(owner)}: "
            for name, parameter in unwrap_all(owner).named_parameters():
                names.setdefault(parameter, prefix + without_wrappers(name))
    return [names.get(parameter, "") for parameter in parameters]


def _require_names(state: Any, names: list[str]) -> None:
    """Raise an error for parameters in another order, as torch pairs them by position."""
    # A file of torch has no names.
    for index, (saved, name) in enumerate(zip(state.get("names", names), names, strict=True)):
        if saved != name:
            raise ValueError(f"its parameter {index} is '{saved}', where the model's is '{name}'")


def _require_shapes(state: Any, parameters: dict[int, torch.Tensor], optimizer: Any) -> None:
    """Raise an error for state of other shapes, which torch would load and may broadcast."""
    is_torch = type(optimizer).__module__.startswith("torch.optim.")
    has_shapes_of_parameters = is_torch and not isinstance(optimizer, _OTHER_SHAPES)
    saved_shapes = dict(zip(parameters, state.get("shapes", ()), strict=False))
    for key in state["state"].keys() & parameters.keys():
        parameter_shape = tuple(parameters[key].shape)
        # A file of torch has the shapes of the state only.
        values = state["state"][key].values()
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        shapes = [saved_shapes.get(key, parameter_shape)]
        if has_shapes_of_parameters:
            shapes += [tensor.shape for tensor in tensors if tensor.dim()]
        for shape in shapes:
            if tuple(shape) != parameter_shape:
                raise ValueError(
                    f"its state of parameter {key} is for the shape {tuple(shape)}, where the "
                    f"model's is {parameter_shape}"
                )


def _load_without_casting(
    optimizer: Any, state_dict: Any, values: dict[Any, Any], parameters: dict[int, torch.Tensor]
) -> None:
    """Load state as it was saved, where torch would convert it to the dtype of its parameter."""
    loaded_by_torch, exact = dict(values), {}
    for key in values.keys() & parameters.keys():
        items = values[key].items()
        # torch cannot load strings and arrays in the state of a parameter.
        loaded_by_torch[key] = {
            name: value for name, value in items if isinstance(value, (torch.Tensor, *_NUMBERS))
        }
        # torch knows on which device an optimizer counts its steps.
        exact[key] = {
            name: value
            for name, value in items
            if name != "step" and not isinstance(value, _NUMBERS)
        }
    optimizer.load_state_dict({**state_dict, "state": loaded_by_torch})
    for key, state in exact.items():
        move = partial(_move, device=parameters[key].device)
        optimizer.state[parameters[key]].update(map_leaves(state, move))


def _move(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _fitting_values(
    values: dict[str, Any], parameter: torch.Tensor, optimizer: Any
) -> dict[str, Any]:
    """Return the state of a parameter, sharded like the parameter, or as the present state is."""
    present = optimizer.state.get(parameter, {})
    shape = parameter.shape or None  # A scalar is not sharded.
    fitting = {}
    for name, value in values.items():
        has_shape_of_parameter = getattr(value, "shape", ()) == shape
        like = parameter if has_shape_of_parameter else present.get(name)
        fitting[name] = shard_like(value, like)
    return fitting
