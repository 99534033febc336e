"""What changes between the steps of a torch program: the same calls of torch on both sides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.differential.programs import Change, Optimizer
from tests.differential.torch_side import Side, Trip


def apply(side: Side, change: Change) -> None:
    """Change something on one side."""
    CHANGES[change.kind](side, change.of, change.value)


def _rate(side: Side, name: str, value: float) -> None:
    for group in side.optimizer(name).param_groups:
        group["lr"] = value


def _settings(side: Side, name: str, value: dict[str, Any]) -> None:
    for group in side.optimizer(name).param_groups:
        group.update({key: one for key, one in value.items() if key in group})


def _freeze(side: Side, name: str, value: tuple[int, bool]) -> None:
    place, trains = value
    parameters = list(side.modules[name].parameters())
    parameter = parameters[place % len(parameters)]
    # the last one that trains stays, or there is nothing to update
    if trains or any(one.requires_grad for one in parameters if one is not parameter):
        parameter.requires_grad_(trains)


def _new_linear(side: Side, like: nn.Linear, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(like.in_features, like.out_features)


def _linears(module: nn.Module) -> list[str]:
    return [name for name, one in module.named_modules() if type(one) is nn.Linear]


def _replace_layer(side: Side, name: str, value: tuple[int, int, bool]) -> None:
    place, seed, joins = value
    module = side.modules[name]
    names = _linears(module)
    if not names:
        return
    path = names[place % len(names)]
    parent, _, last = path.rpartition(".")
    new = _new_linear(side, module.get_submodule(path), seed)
    setattr(module.get_submodule(parent), last, new)
    if joins:
        side.optimizer(name).add_param_group({"params": list(new.parameters())})


def _add_layer(side: Side, name: str, value: tuple[int, bool]) -> None:
    seed, joins = value
    module = side.modules[name]
    torch.manual_seed(seed)
    width = side.program.models[name].width[1]
    new = nn.Linear(width, width)
    module.add_module(f"added {len(list(module.children()))}", new)
    if joins:
        side.optimizer(name).add_param_group({"params": list(new.parameters())})


def _forward_hook(side: Side, name: str, value: float) -> None:
    def hook(module: Any, inputs: Any, output: Any) -> Any:
        side.count("forward hook")
        return output * value

    side.hooks.append(side.modules[name].register_forward_hook(hook))


def _pre_hook(side: Side, name: str, value: float) -> None:
    hook = lambda module, inputs: (inputs[0] * value,)  # noqa: E731
    first = next(iter(side.modules[name].children()))
    side.hooks.append(first.register_forward_pre_hook(hook))


def _gradient_hook(side: Side, name: str, value: tuple[int, float]) -> None:
    place, factor = value

    def hook(gradient: Any) -> Any:
        side.count("gradient hook")
        return gradient * factor

    parameter = _trained(side, name, place)
    side.hooks.append(parameter.register_hook(hook))


def _accumulate_hook(side: Side, name: str, value: tuple[int, float]) -> None:
    place, factor = value

    def hook(parameter: Any) -> None:
        side.count("post-accumulate hook")
        parameter.grad.mul_(factor)

    parameter = _trained(side, name, place)
    side.hooks.append(parameter.register_post_accumulate_grad_hook(hook))


def _trained(side: Side, name: str, place: int) -> nn.Parameter:
    # a hook can only be put on what needs gradients
    parameters = [one for one in side.modules[name].parameters() if one.requires_grad]
    return parameters[place % len(parameters)]


def _raising_hook(side: Side, name: str, value: int) -> None:
    def hook(gradient: Any) -> Any:
        handle.remove()
        raise Trip("in backward")

    handle = _trained(side, name, value).register_hook(hook)
    side.hooks.append(handle)


def _backward_hook(side: Side, name: str, value: float) -> None:
    def hook(module: Any, to_inputs: Any, to_outputs: Any) -> Any:
        side.count("backward hook")
        return tuple(None if one is None else one * value for one in to_inputs)

    last = list(side.modules[name].children())[-1]
    side.hooks.append(last.register_full_backward_hook(hook))


def _step_hook(side: Side, name: str, value: float) -> None:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        side.count("step hook")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(value)

    side.hooks.append(side.optimizer(name).register_step_pre_hook(hook))


def _no_hooks(side: Side, name: str, value: None) -> None:
    for hook in side.hooks:
        hook.remove()
    side.hooks.clear()


def _load_state(side: Side, name: str, value: int) -> None:
    module = side.modules[name]
    module.load_state_dict(_other_state(module, value))


def _other_state(module: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        key: one + 0.1 * torch.rand(one.shape, generator=source).to(one.dtype)
        if one.is_floating_point()
        else one + 1
        for key, one in module.state_dict().items()
    }


def _load_optimizer(side: Side, name: str, value: float) -> None:
    state = copy.deepcopy(side.optimizer(name).state_dict())
    for group in state["param_groups"]:
        group["lr"] = value
    side.optimizer(name).load_state_dict(state)


def _other_optimizer(side: Side, name: str, value: Optimizer) -> None:
    side.put_optimizer(name, side.make(name, value))


def _eval_layer(side: Side, name: str, value: int) -> None:
    children = list(side.modules[name].children())
    children[value % len(children)].eval()


def _patched_zero_grad(side: Side, name: str, value: None) -> None:
    optimizer: Any = side.optimizer(name)
    optimizer.zero_grad = lambda set_to_none=True: type(optimizer).zero_grad(optimizer, False)


def _patched_step(side: Side, name: str, value: float) -> None:
    optimizer: Any = side.optimizer(name)

    def step(closure: Any = None) -> Any:
        side.count("patched step")
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], value)
        return type(optimizer).step(optimizer)

    optimizer.step = step


def _extra(side: Side, name: str, value: None) -> None:
    groups = side.optimizer(name).param_groups
    extra = side.extras[name]
    if not any(extra is one for group in groups for one in group["params"]):
        side.optimizer(name).add_param_group({"params": [extra]})


def _stray_gradients(side: Side, name: str, value: float) -> None:
    parameters = [one for one in side.modules[name].parameters() if one.requires_grad]
    with torch.enable_grad():
        (value * sum(one.square().sum() for one in parameters)).backward()


def _op(side: Side, name: str, value: tuple[str, Any]) -> None:
    side.change_op(name, *value)


def _insert_op(side: Side, name: str, value: tuple[int, str]) -> None:
    place, function = value
    side.insert_op(place, function, name)


CHANGES: dict[str, Callable[[Side, str, Any], None]] = {
    "learning rate": _rate,
    "settings of groups": _settings,
    "requires_grad": _freeze,
    "layer replaced": _replace_layer,
    "layer added": _add_layer,
    "forward hook": _forward_hook,
    "forward pre-hook": _pre_hook,
    "gradient hook": _gradient_hook,
    "post-accumulate hook": _accumulate_hook,
    "backward hook": _backward_hook,
    "raising hook": _raising_hook,
    "step hook": _step_hook,
    "hooks removed": _no_hooks,
    "load_state_dict": _load_state,
    "optimizer's load_state_dict": _load_optimizer,
    "another optimizer": _other_optimizer,
    "layer.eval": _eval_layer,
    "zero_grad patched": _patched_zero_grad,
    "step patched": _patched_step,
    "extra parameter in the optimizer": _extra,
    "stray gradients": _stray_gradients,
    "op's attribute": _op,
    "op inserted": _insert_op,
}
