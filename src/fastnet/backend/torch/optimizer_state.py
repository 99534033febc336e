"""The state of torch optimizers and of their scalers: given, checked, and put in."""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastnet.backend.torch.update import parameters_in
from fastnet.backend.torch.wholes import parts_of_memory

__all__ = ["complaint_about", "kept_optimizer", "load_state", "state_of"]

_SCALER = "scaler"
_OPTIMIZER = "optimizer"
# what optimizers remember in the shape of a parameter; some remember other things in other shapes
_OF_PARAMETERS = ("exp_avg", "momentum_buffer", "square_avg")
_NOT_NEGATIVE = ("eps", "initial_lr", "lr", "momentum", "weight_decay")
# how torch is to work, not what: none of it makes a difference to what it remembers
_WAYS = {"capturable": False, "differentiable": False, "foreach": False, "fused": False}
# an optimizer begins anew where this is None
_MAY_BE_NONE = "momentum_buffer"


def state_of(optimizer: Any) -> dict[str, Any]:
    """Return all that an optimizer and its scaler remember.

    Args:
        optimizer: The optimizer.

    Returns:
        Its `state_dict`, with the name of its class and the state of its scaler besides: torch
        passes over these where it reads one.
    """
    scaler = getattr(optimizer, "scaler", None)
    more = {} if scaler is None else {_SCALER: scaler.state_dict()}
    return {**optimizer.state_dict(), _OPTIMIZER: type(optimizer).__name__, **more}


def load_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Restore the state of an optimizer, and its scaler.

    Args:
        optimizer: The optimizer. One without a scaler takes none, and a scaler stays as it is
            where there is no state of one.
        state: What `state_of` gave, or a `state_dict`, which `complaint_about` had nothing against.
    """
    groups = [
        # settings that an older version had not
        {**own, **group}
        for own, group in zip(optimizer.param_groups, state["param_groups"], strict=True)
    ]
    places = [place for group in state["param_groups"] for place in group["params"]]
    parameters = dict(zip(places, parameters_in(optimizer), strict=True))
    memories = {}
    for place, memory in state["state"].items():
        parameter = parameters[place]
        memories[place] = parts_of_memory(memory, parameter, optimizer.state.get(parameter, {}))
    optimizer.load_state_dict({"state": memories, "param_groups": groups})
    scaler = getattr(optimizer, "scaler", None)
    if scaler is not None and state.get(_SCALER):
        scaler.load_state_dict(state[_SCALER])


@contextmanager
def kept_optimizer(optimizer: Any) -> Iterator[None]:
    """Restore the state of an optimizer if something fails meanwhile.

    Args:
        optimizer: The optimizer. What it remembers is not written to but replaced when it is given
            another state, so that it need not be copied.
    """
    memories, groups = optimizer.state, optimizer.param_groups
    held = {place: dict(memory) for place, memory in memories.items()}
    settings = [dict(group) for group in groups]
    scaler: Any = getattr(optimizer, "scaler", None)
    scale = None if scaler is None else copy.deepcopy(scaler.state_dict())
    try:
        yield
    except BaseException:
        optimizer.state, optimizer.param_groups = memories, groups
        memories.clear()
        memories.update(held)
        for group, before in zip(groups, settings, strict=True):
            group.clear()
            group.update(before)
        if scale:
            scaler.load_state_dict(scale)
        raise


def complaint_about(state: Any, optimizer: Any) -> str | None:
    """Return why a state is not that of an optimizer, or would make its next step fail.

    Args:
        state: What is said to be a state.
        optimizer: The optimizer.

    Returns:
        What is wrong, to stand behind the file's name; None if nothing is.
    """
    if not _is_state(state):
        return "it holds something else than an optimizer's state"
    kind = state.get(_OPTIMIZER, type(optimizer).__name__)
    if kind != type(optimizer).__name__:
        return f"it is of {kind}"
    groups, own_groups = state["param_groups"], optimizer.param_groups
    counts, own_counts = ([len(group["params"]) for group in each] for each in (groups, own_groups))
    if counts != own_counts:
        return f"its groups have {counts} parameters, but those of the model's have {own_counts}"
    settings, own_settings = (
        {name for group in each for name in group} for each in (groups, own_groups)
    )
    if settings - own_settings and own_settings - settings:
        return f"its settings are {sorted(settings)}, but those of the model's are " + str(
            sorted(own_settings)
        )
    for group, own_group in zip(groups, own_groups, strict=True):
        complaint = _complaint_about_settings(group, own_group)
        if complaint:
            return complaint
    places = [place for group in groups for place in group["params"]]
    if len(set(places)) != len(places) or not set(state["state"]) <= set(places):
        return "what it remembers is of other parameters than those of its groups"
    complaint = _complaint_about_memories(state, optimizer)
    scaler = getattr(optimizer, "scaler", None)
    if not complaint and scaler is not None and state.get(_SCALER):
        complaint = _complaint_about_scaler(state[_SCALER], scaler.state_dict())
    return complaint


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        return False
    memories, groups = state["state"], state["param_groups"]
    return (
        isinstance(memories, dict)
        and all(isinstance(memory, dict) for memory in memories.values())
        and isinstance(groups, list)
        and all(
            isinstance(group, dict)
            and isinstance(group.get("params"), list)
            and all(isinstance(place, (int, str)) for place in group["params"])
            for group in groups
        )
        and isinstance(state.get(_SCALER, {}), dict)
    )


def _complaint_about_settings(group: dict[str, Any], own: dict[str, Any]) -> str | None:
    for name in own:
        if name not in group and _number(own[name]) is not None and name != "initial_lr":
            return f"it lacks the setting '{name}'"
    for name, value in group.items():
        if name in ("params", "param_names"):
            continue
        before = own.get(name)
        if not _is_setting(value):
            return f"its setting '{name}' is of the type {type(value).__name__}"
        unlike = name in own and not _is_alike(value, before)
        if unlike or (name == "lr" and _number(value) is None):
            return f"its setting '{name}' is {value!r}, where the model's is {before!r}"
        if not _is_sane(name, value, before):
            return f"its setting '{name}' is {value!r}"
    return None


def _is_setting(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, (bool, str)) or _number(value) is not None


def _is_alike(value: Any, own: Any) -> bool:
    """Return whether two settings are of one kind, where None may stand for anything."""
    if value is None or own is None:
        return True
    if isinstance(own, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(own)
            and all(map(_is_alike, value, own))
        )
    if _number(own) is not None:
        return _number(value) is not None
    return not isinstance(own, (bool, str)) or type(value) is type(own)


def _is_sane(name: str, value: Any, own: Any) -> bool:
    if isinstance(value, (list, tuple)):
        owns = own if isinstance(own, (list, tuple)) else [None] * len(value)
        return all(_is_sane(name, *both) for both in zip(value, owns, strict=True))
    number, before = _number(value), _number(own)
    if number is None:
        return True
    if not math.isfinite(number):
        return before is not None and not math.isfinite(before)
    if name == "betas":
        return 0 <= number < 1
    # a program may have its reasons, but then its own optimizer has them too
    return number >= 0 or name not in _NOT_NEGATIVE or (before is not None and before < 0)


def _number(value: Any) -> float | None:
    """Return a real number as a float, and None for anything else."""
    if isinstance(value, torch.Tensor):
        plain = value.numel() == 1 and not value.is_complex() and not value.is_quantized
        if not plain or value.is_meta or value.layout != torch.strided:
            return None
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return None


def _complaint_about_memories(state: dict[str, Any], optimizer: Any) -> str | None:
    for group, own_group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        needed = _rehearsed(optimizer, {**own_group, **group}, own_group["params"])
        for place, parameter in zip(group["params"], own_group["params"], strict=True):
            memory = state["state"].get(place, {})
            if not memory:
                continue
            if needed is None:
                wanted = dict(optimizer.state.get(parameter, {}))
            else:
                wanted = needed[_look_of(parameter)]
                missing = [name for name in wanted if name not in memory]
                if missing:
                    return f"it lacks {missing} of a parameter"
            for name, value in memory.items():
                complaint = _complaint_about_memory(name, value, wanted.get(name), parameter)
                if complaint:
                    return complaint
    return None


def _complaint_about_memory(
    name: str, value: Any, wanted: Any, parameter: torch.Tensor
) -> str | None:
    if isinstance(wanted, torch.Tensor) and wanted.dim() == 0 and parameter.dim():
        number = _number(value)
        if number is None or not math.isfinite(number) or (name == "step" and number < 0):
            return f"it has {value!r} as '{name}' of a parameter"
        return None
    if name in _OF_PARAMETERS and not isinstance(wanted, torch.Tensor):
        wanted = parameter
    if not isinstance(wanted, torch.Tensor) or (value is None and name == _MAY_BE_NONE):
        return None
    shape = getattr(value, "shape", ())
    if not isinstance(value, torch.Tensor) or shape != wanted.shape:
        if not wanted.dim() and _number(value) is not None:
            return None
        return (
            f"it has '{name}' of the shape {tuple(shape)} for a parameter of the shape "
            f"{tuple(parameter.shape)}"
        )
    plain = value.layout == wanted.layout and not value.is_quantized and not value.is_meta
    if not plain or not torch.can_cast(value.dtype, wanted.dtype):
        return f"it has '{name}' of the type {value.dtype} for a parameter of {parameter.dtype}"
    return None


def _complaint_about_scaler(state: dict[str, Any], own: dict[str, Any]) -> str | None:
    if state.keys() != own.keys():
        return f"the state of its scaler has {sorted(state)}, but that of the model's {sorted(own)}"
    for name, value in state.items():
        number = _number(value)
        if (
            number is None
            or not math.isfinite(number)
            or number < 0
            or (name == "scale" and not number)
        ):
            return f"its scaler's '{name}' is {value!r}"
        if isinstance(own[name], int) and not isinstance(value, int):
            return f"its scaler's '{name}' is {value!r}"
    return None


def _rehearsed(
    optimizer: Any, settings: dict[str, Any], parameters: list[torch.Tensor]
) -> dict[Any, dict[str, Any]] | None:
    """Find out what an optimizer of torch remembers of parameters, once it has taken a step.

    It takes one of parameters on the device "meta", where there are no numbers.

    Returns:
        What it remembers, by name, for each kind of parameter; None if this cannot be found out.
    """
    cls = type(optimizer)
    step = inspect.unwrap(cls.step)
    if not step.__module__.startswith("torch.optim."):
        return None  # what it would do besides is its author's
    looks = {_look_of(one): one for one in parameters}
    stand_ins = {
        # of one that is in parts the whole
        look: torch.empty(one.shape, dtype=one.dtype, device="meta")
        for look, one in looks.items()
    }
    for one in stand_ins.values():
        one.grad = torch.empty_like(one)
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    ways = {name: way for name, way in _WAYS.items() if name in settings}
    twin.param_groups = [{**settings, **ways, "params": list(stand_ins.values())}]
    try:
        with torch.no_grad():
            step(twin)
    except Exception:
        return None  # it needs more than gradients
    return {look: dict(twin.state[one]) for look, one in stand_ins.items()}


def _look_of(parameter: torch.Tensor) -> Any:
    return parameter.shape, parameter.dtype
