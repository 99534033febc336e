"""The state of torch optimizers and their gradient scalers."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.update import parameters_in

__all__ = ["load_optimizer_state", "optimizer_state"]

# State that torch's optimizers keep in the shape of the parameter.
_LIKE_PARAMETER = (
    "acc_delta",  # Adadelta
    "exp_avg",
    "exp_avg_sq",
    "exp_inf",  # Adamax
    "grad_avg",  # RMSprop, centered
    "max_exp_avg_sq",  # Adam with amsgrad
    "momentum_buffer",
    "square_avg",
)


def optimizer_state(optimizer: Any) -> dict[str, Any]:
    """Return the `state_dict` of an optimizer, with its class and the state of its scaler."""
    state = {**optimizer.state_dict(), "optimizer": type(optimizer).__name__}
    scaler = getattr(optimizer, "scaler", None)
    return state if scaler is None else {**state, "scaler": scaler.state_dict()}


def load_optimizer_state(optimizer: Any, state: Any, source: str) -> None:
    """Restore an optimizer and its scaler; raise a ValueError if the state does not fit."""
    try:
        groups = _fitting_groups(state, optimizer)
        parameters = dict(
            zip(
                (key for group in groups for key in group["params"]),
                parameters_in(optimizer),
                strict=True,
            )
        )
        tensors = {
            key: _fitting_tensors(values, parameters[key], optimizer)
            for key, values in state["state"].items()
        }
        optimizer.load_state_dict({"state": tensors, "param_groups": groups})
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None and state.get("scaler"):
            scaler.load_state_dict(state["scaler"])
    except Exception as error:  # A file may hold anything under these names.
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{source} does not fit the optimizer, {type(optimizer).__name__}: {reason}. Use the "
            "optimizer that was saved, or leave its state out."
        ) from error


def _fitting_groups(state: Any, optimizer: Any) -> list[dict[str, Any]]:
    """Return the groups of a state, after checking that they are of an optimizer of this kind."""
    kind = state.get("optimizer", type(optimizer).__name__)
    if kind != type(optimizer).__name__:
        raise ValueError(f"it is of {kind}")
    groups, own_groups = state["param_groups"], optimizer.param_groups
    counts, own_counts = ([len(group["params"]) for group in each] for each in (groups, own_groups))
    if counts != own_counts:
        raise ValueError(
            f"its groups have {counts} parameters, where the model's have {own_counts}"
        )
    names, own_names = ({name for one in each for name in one} for each in (groups, own_groups))
    # Another version of torch may have more settings or fewer, but not both.
    if names - own_names and own_names - names:
        raise ValueError(
            f"its settings are {sorted(names)}, where the model's are {sorted(own_names)}"
        )
    return [{**own, **group} for own, group in zip(own_groups, groups, strict=True)]


def _fitting_tensors(
    values: dict[str, Any], parameter: torch.Tensor, optimizer: Any
) -> dict[str, Any]:
    """Return the state of a parameter, sharded like the parameter."""
    before = optimizer.state.get(parameter, {})
    fitting = {}
    for name, value in values.items():
        like: Any = before.get(name)
        if isinstance(value, torch.Tensor):
            if value.shape == parameter.shape and value.dim():
                like = parameter
            elif name in _LIKE_PARAMETER and value.shape != parameter.shape:
                # torch would fail in the next step, or broadcast.
                raise ValueError(
                    f"'{name}' has the shape {tuple(value.shape)} for a parameter of the shape "
                    f"{tuple(parameter.shape)}"
                )
        fitting[name] = shard_like(value, like)
    return fitting
